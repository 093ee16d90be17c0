"""ResNet-50 in PyTorch, with the same layers as in `keras.applications`."""

from torch import nn


def normalisation(channels):
    # Keras's momentum of 0.99 is PyTorch's of 0.01.
    return nn.BatchNorm2d(channels, eps=1.001e-5, momentum=0.01)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, inputs, width, stride, project):
        super().__init__()
        outputs = 4 * width
        # As in Keras: the stride in the first convolution, and biases.
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, stride),
            normalisation(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
            normalisation(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1),
            normalisation(outputs),
        )
        self.shortcut = nn.Identity()
        if project:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride), normalisation(outputs)
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.activation(self.body(x) + self.shortcut(x))


def resnet50(classes=1000):
    layers = [
        nn.Conv2d(3, 64, 7, 2, padding=3),
        normalisation(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            first = block == 0
            stride = 2 if first and stage > 0 else 1
            layers.append(Bottleneck(inputs, width, stride, project=first))
            inputs = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
    )

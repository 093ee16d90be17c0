"""Small programs of the shape of published ones, as their authors would write them.

Each module has a function `train(strategy, folder)`, in which nothing is of
keras_fastnet, and says of which published program it has the shape (`PUBLISHED`),
what is not as there (`CHANGED`), and how near two workers come to one device
(`TOLERANCE`, a relative difference). On one device, the strategy is TensorFlow's
default, `tf.distribute.get_strategy()`, whose scope changes nothing.
"""

PROGRAMS = (
    "adversarial",
    "bidirectional_lstm",
    "contrastive",
    "ctc_endpoint",
    "ctc_speech",
    "custom_loop",
    "custom_train_step",
    "diffusion",
    "distillation",
    "distributed_guide",
    "gan",
    "image_folder",
    "keras_tutorial",
    "masked_language_model",
    "miniature_gpt",
    "multi_worker_keras",
    "named_entities",
    "recommender",
    "segmentation",
    "siamese",
    "siamese_contrastive",
    "structured_data",
    "transformer",
    "vae",
    "vq_vae",
    "weather",
    "wgan_gp",
)

"""All workers meet before TensorFlow's servers start.

TensorFlow waits for an absent worker without end and without a word. So the
workers first meet here, over plain TCP on the addresses that TensorFlow will use.
Rank 0 leads, the others follow:

1. A follower connects to rank 0 and says its rank and its facts: the cluster as it
   knows it, and versions. Rank 0 welcomes it, after which it need not try again.
2. Rank 0 calls the follower on the follower's own address, and the follower echoes
   that on its first connection: its address leads to it and to nobody else.
3. Rank 0 tells everybody what they agreed on, or what is wrong.

Each message is a JSON object on a line of its own. Whatever else connects to a
port, such as a health probe, is dropped.
"""

from keras_fastnet.cluster.rendezvous.meeting import meet

__all__ = ["meet"]

"""One verifier of several processes, on the hosts of one TPU slice.

`process` brings JAX together, as `SliceSettings` of the runtime say; `meeting` lets the leader
find its followers, `channel` carries frames to them, `mirror` runs every step on all hosts.
It must not import `engine` or `device`: it moves steps and does not know what is in them.
"""

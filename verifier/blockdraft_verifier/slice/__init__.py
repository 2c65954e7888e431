"""One verifier of several processes, on the hosts of one TPU slice.

`meeting` brings the processes together, as `SliceSettings` of the runtime say; `channel` carries
frames from the leader to its followers, `mirror` runs every step on all hosts.
It must not import `engine` or `device`: it moves steps and does not know what is in them.
"""

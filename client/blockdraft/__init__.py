"""The client SDK under the name of the project: `from blockdraft import Client`.

It is `blockdraft_client`, whose documentation is the one to read.
"""

from blockdraft_client import *  # noqa: F403
from blockdraft_client import __version__ as __version__

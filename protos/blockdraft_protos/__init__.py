"""Generated protocol code of `protos/blockdraft`; never edited by hand."""

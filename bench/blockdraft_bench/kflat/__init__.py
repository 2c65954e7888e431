"""`bench kflat`: what verifying K tokens costs against verifying one; measured and modelled."""

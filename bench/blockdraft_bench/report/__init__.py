"""`bench report`: one page and one figure of any number of measurements."""

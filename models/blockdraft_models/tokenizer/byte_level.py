"""GPT-2's alphabet: every byte written as one printable character."""


def _alphabet() -> dict[int, str]:
    # Printable Latin-1 stands for itself; the others take code points from 256 on, in order
    # (`bytes_to_unicode` of openai/gpt-2 `src/encoder.py`).
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table, shifted = {}, 256
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(shifted)
            shifted += 1
    return table


BYTE_TO_CHAR = _alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}

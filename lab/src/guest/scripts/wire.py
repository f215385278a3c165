"""Messages of gRPC by their field numbers, without definition files."""


def varint(number):
    """Encodes an integer in groups of seven bits, the lowest first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def message(*fields):
    """Encodes (field number, value) pairs; a value is an integer, a text or an encoded message."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, int):
            encoded += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            encoded += varint(number << 3 | 2) + varint(len(value)) + value
    return encoded


def read_varint(encoded, at):
    """Returns the integer at a position, and the position after it."""
    number = shift = 0
    while True:
        number |= (encoded[at] & 0x7F) << shift
        shift += 7
        at += 1
        if encoded[at - 1] < 0x80:
            return number, at


def fields(encoded):
    """Returns the last value of each field of a message."""
    found, at = {}, 0
    while at < len(encoded):
        key, at = read_varint(encoded, at)
        value, at = read_varint(encoded, at)
        if key & 7 == 2:
            value, at = encoded[at:at + value], at + value
        found[key >> 3] = value
    return found

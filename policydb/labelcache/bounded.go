package labelcache

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
)

// maxItem is the size of the largest item that is stored, in bytes.
const maxItem = headerSize + nonceSize + partSize + tagSize

var errTooMuch = errors.New("memcached sent more than one item, or a larger one than is stored")

// bounded is a connection to memcached that fails where a response is none to a request for one item: the client
// allocates each size that it reads, up to 4 GiB, and reads items, each with its own time, until the server ends them.
type bounded struct {
	net.Conn
	in    *bufio.Reader
	line  []byte // of a response, not yet passed on
	after int    // bytes of an item behind the line
	items int    // since the last line of another kind
}

func dialBounded(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &bounded{Conn: conn, in: bufio.NewReader(conn)}, nil
}

// Read reads of a line, and then of the item that it announces.
func (c *bounded) Read(b []byte) (int, error) {
	if len(c.line) == 0 && c.after > 0 {
		n, err := c.in.Read(b[:min(len(b), c.after)])
		c.after -= n
		return n, err
	}
	if len(c.line) == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.line)
	c.line = c.line[n:]
	return n, nil
}

// next reads a line: of an item, "VALUE name flags size", or of another kind.
func (c *bounded) next() error {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	c.line = bytes.Clone(line)
	fields := bytes.Fields(line)
	if len(fields) == 0 || string(fields[0]) != "VALUE" {
		c.items = 0
		return nil
	}
	size := maxItem + 1
	if len(fields) >= 4 {
		if n, err := strconv.ParseUint(string(fields[3]), 10, 31); err == nil {
			size = int(n)
		}
	}
	if c.items++; c.items > 1 || size > maxItem {
		return errTooMuch
	}
	c.after = size + len("\r\n")
	return nil
}

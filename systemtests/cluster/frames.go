package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// MAC is that of a link in a network namespace.
func (c *Cluster) MAC(ctx context.Context, netns, device string) (net.HardwareAddr, error) {
	text, err := c.RunIn(ctx, netns, "ip", "-j", "link", "show", "dev", device)
	if err != nil {
		return nil, err
	}
	var links []struct{ Address string }
	if err := json.Unmarshal([]byte(text), &links); err != nil || len(links) != 1 {
		return nil, fmt.Errorf("link %s: %q: %w", device, text, err)
	}
	return net.ParseMAC(links[0].Address)
}

// SendFrames sends whole frames on eth0 of a network namespace, one after the other.
func (c *Cluster) SendFrames(ctx context.Context, netns string, pause time.Duration, frames ...[]byte) error {
	return c.SendFramesOn(ctx, netns, "eth0", pause, frames...)
}

// SendFramesOn sends whole frames on a link of a network namespace, one after the other.
func (c *Cluster) SendFramesOn(ctx context.Context, netns, device string, pause time.Duration, frames ...[]byte) error {
	cmd := inNS(ctx, netns, c.probe(), "frames", "-dev", device, "-pause", pause.String())
	var lines bytes.Buffer
	for _, f := range frames {
		lines.WriteString(hex.EncodeToString(f) + "\n")
	}
	cmd.Stdin = &lines
	_, err := output(cmd)
	return err
}

// Hear takes the frames that come in on a link and hold the token, from when it returns until the function that it returns
// is called.
func (c *Cluster) Hear(ctx context.Context, netns, device string, token []byte) (stop func() ([][]byte, error), err error) {
	cmd := inNS(ctx, netns, c.probe(), "hear", "-dev", device, hex.EncodeToString(token))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReaderSize(out, 1<<18)
	if first, err := lines.ReadString('\n'); err != nil {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("listen on %s: %q: %w", device, first, err)
	}
	return func() (frames [][]byte, err error) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return nil, err
		}
		text, err := io.ReadAll(lines)
		if err != nil {
			return nil, err
		}
		for line := range strings.FieldsSeq(string(text)) {
			frame, err := hex.DecodeString(line)
			if err != nil {
				return nil, err
			}
			frames = append(frames, frame)
		}
		return frames, cmd.Wait()
	}, nil
}

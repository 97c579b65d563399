package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
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
	cmd.Stdin = hexLines(frames)
	_, err := output(cmd)
	return err
}

// RepeatFrames sends whole frames on eth0 of a network namespace, one after the other, and all of them again, until ctx
// ends.
func (c *Cluster) RepeatFrames(ctx context.Context, netns string, pause time.Duration, frames ...[]byte) error {
	cmd := inNS(ctx, netns, c.probe(), "frames", "-pause", pause.String(), "-repeat")
	cmd.Stdin = hexLines(frames)
	if _, err := output(cmd); ctx.Err() == nil {
		return fmt.Errorf("the sender of frames ended: %w", err)
	}
	return nil
}

func hexLines(frames [][]byte) *bytes.Buffer {
	var lines bytes.Buffer
	for _, f := range frames {
		lines.WriteString(hex.EncodeToString(f) + "\n")
	}
	return &lines
}

// A Hearing is a process that takes the frames of a link that contain a token.
type Hearing struct {
	cmd *exec.Cmd
	end chan error // gets the error of reading, nil at the end of the output

	mu     sync.Mutex
	frames [][]byte
}

// Hear takes the frames that come in on a link and hold the token, from when it returns until Stop.
func (c *Cluster) Hear(ctx context.Context, netns, device string, token []byte) (*Hearing, error) {
	h := &Hearing{
		cmd: inNS(ctx, netns, c.probe(), "hear", "-dev", device, hex.EncodeToString(token)),
		end: make(chan error, 1),
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReaderSize(out, 1<<18)
	if first, err := lines.ReadString('\n'); err != nil {
		_ = h.cmd.Process.Kill()
		return nil, fmt.Errorf("listen on %s: %q: %w", device, first, err)
	}
	go func() { h.end <- h.read(lines) }()
	return h, nil
}

// read takes frames, one a line in hexadecimal, until the end of the output.
func (h *Hearing) read(lines *bufio.Reader) error {
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" {
			return nil
		}
		if err != nil {
			return err
		}
		frame, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.frames = append(h.frames, frame)
		h.mu.Unlock()
	}
}

// Frames returns the frames so far, in their order. Safe for concurrent use.
func (h *Hearing) Frames() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.frames)
}

// Stop ends the process and returns all frames, those that were read beside an error too.
func (h *Hearing) Stop() ([][]byte, error) {
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return h.Frames(), err
	}
	err := <-h.end
	return h.Frames(), errors.Join(err, h.cmd.Wait())
}

// framesLimit is how long an allowed packet may take, at slowness 1. A switch that a busy machine keeps waiting may have
// a packet for seconds.
const framesLimit = 5 * time.Second

// Observe returns when window has passed undisturbed, in which a denied packet would come, and all allowed packets have
// come. It waits for the allowed ones for up to 5 s × Slowness more. Complete reports whether they have come; nil: none
// is allowed.
func Observe(ctx context.Context, window time.Duration, complete func() bool) {
	Undisturbed(ctx, window)
	_ = Until(ctx, framesLimit, func() error {
		if complete == nil || complete() {
			return nil
		}
		return errors.New("incomplete")
	})
}

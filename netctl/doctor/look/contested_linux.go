package look

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netctl/doctor"
	"golang.org/x/sys/unix"
)

// maxContested is the maximum size of netplugin's response, in bytes.
const maxContested = 64 << 10

// contested reads the contested objects from netplugin's socket.
func (o *Options) contested(ctx context.Context) doctor.Contested {
	c := doctor.Contested{Socket: o.CNISocket}
	ctx, cancel := context.WithTimeout(ctx, o.Each)
	defer cancel()
	texts, err := o.contestedTexts(ctx)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		c.Absent = true
		return c
	}
	c.Problems = doctor.Read(texts, err)
	return c
}

func (o *Options) contestedTexts(ctx context.Context) (texts []string, err error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", o.CNISocket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://netplugin"+inspect.ContestedPath, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("netplugin responds %q: is it of an older version?", response.Status)
	}
	var problems []inspect.NetworkProblem
	if err := json.NewDecoder(io.LimitReader(response.Body, maxContested)).Decode(&problems); err != nil {
		return nil, fmt.Errorf("parse netplugin's response: %w", err)
	}
	for _, p := range problems {
		texts = append(texts, p.Text)
	}
	return texts, nil
}

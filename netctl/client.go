package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// way is how netmaster is reached: through the API server, or directly. Errors of netmaster's are gRPC's.
type way interface {
	Ask(ctx context.Context, q *inspect.Question) (*inspect.Answer, error)
	// Follow hands on each answer of a stream, until each fails, ctx ends or there is no more.
	Follow(ctx context.Context, q *inspect.Question, each func(json.RawMessage) error) error
	Server() string
	Close()
}

// open chooses the way: directly only where that was asked for.
func (o *options) open() (way, error) {
	if o.server != "" {
		return o.direct()
	}
	c, err := apiserver.New(o.access())
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (o *options) access() apiserver.Options {
	return apiserver.Options{Kubeconfig: o.kubeconfig, Context: o.context, As: o.as, AsGroups: o.asGroups, UserAgent: "flowkeep-netctl/" + process.BuildVersion()}
}

// direct is netmaster's own port, which takes administrators' certificates.
type direct struct {
	conn   *grpc.ClientConn
	server string
}

func (o *options) direct() (way, error) {
	tls, err := o.tls.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%w; set --tls-ca, --tls-cert and --tls-key, or FLOWKEEP_CA, FLOWKEEP_CERT and FLOWKEEP_KEY", err)
	}
	conn, err := grpc.NewClient("passthrough:///"+o.server, grpc.WithTransportCredentials(credentials.NewTLS(tls)))
	if err != nil {
		return nil, err
	}
	return &direct{conn: conn, server: o.server}, nil
}

func (d *direct) Ask(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	a, err := inspect.AskRaw(ctx, d.conn, q)
	if err != nil {
		return nil, d.told(err)
	}
	return a, nil
}

func (d *direct) Follow(ctx context.Context, q *inspect.Question, each func(json.RawMessage) error) error {
	return d.told(inspect.Follow(ctx, d.conn, *q, each))
}

func (d *direct) told(err error) error {
	if isConnection(err) {
		return fmt.Errorf("netmaster does not answer at %s: is it running, and is --server (or FLOWKEEP_SERVER) right? %w", d.server, err)
	}
	return err
}

func (d *direct) Server() string { return d.server }
func (d *direct) Close()         { d.conn.Close() }

// ask puts a question to netmaster.
func ask[T any](cmd *cobra.Command, o *options, q inspect.Question) (T, error) {
	var out T
	w, err := o.open()
	if err != nil {
		return out, err
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	a, err := w.Ask(ctx, &q)
	switch {
	case status.Code(err) == codes.DeadlineExceeded:
		return out, fmt.Errorf("%w: no answer from %s within %v; is --server or the kubeconfig right, or is a longer --timeout needed?", errTimeout, w.Server(), o.timeout)
	case err != nil:
		return out, err
	}
	if c := a.Cached; c != nil && c.Standby != "" {
		const text = "standby %s answers from its label cache (%s): the leader's state at epoch %d, revision %d\n"
		fmt.Fprintf(cmd.ErrOrStderr(), text, c.Standby, c.Source, c.Epoch, c.Revision)
	}
	err = json.Unmarshal(a.Body, &out)
	return out, err
}

// follow hands on each answer of a stream, as they come, until each fails or there are no more.
func follow[T any](cmd *cobra.Command, o *options, q inspect.Question, each func(T) error) error {
	w, err := o.open()
	if err != nil {
		return err
	}
	defer w.Close()
	return w.Follow(cmd.Context(), &q, func(body json.RawMessage) error {
		var v T
		if err := json.Unmarshal(body, &v); err != nil {
			return err
		}
		return each(v)
	})
}

// isUnreachable reports whether no netmaster responded.
func isUnreachable(err error) bool {
	var u *apiserver.Unreachable
	return isConnection(err) || errors.As(err, &u)
}

// errTimeout is returned when netmaster did not answer in time.
var errTimeout = errors.New("netmaster does not answer")

// isConnection reports whether an Unavailable error means that no server responded. The text of grpc-go's own errors
// shows it.
func isConnection(err error) bool {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.Unavailable {
		return false
	}
	return slices.ContainsFunc([]string{"connection error: ", "error reading from server: ", "error reading server preface: ", "last connection error: ", "name resolver error: ",
		"closing transport due to: ", "the connection is ", "transport: ", "transport is closing"},
		func(words string) bool { return strings.HasPrefix(innermost(err), words) })
}

// isBusy reports whether netmaster would respond a little later.
func isBusy(err error) bool {
	code := status.Code(err)
	return code == codes.ResourceExhausted || code == codes.Unavailable
}

// innermost returns the status' own message; status.FromError adds the text of the wrapping errors.
func innermost(err error) string {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Message()
	}
	return err.Error()
}

// message leaves gRPC's wrapping out.
func message(err error) string {
	if t := (troubleError{}); errors.As(err, &t) {
		err = t.error
	}
	if s, ok := status.FromError(err); ok && !isConnection(err) {
		return s.Message()
	}
	return err.Error()
}

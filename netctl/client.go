package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// ask puts a question to netmaster.
func ask[T any](cmd *cobra.Command, o *options, q inspect.Question) (T, error) {
	var none T
	tls, err := o.tls.ClientConfig()
	if err != nil {
		return none, fmt.Errorf("%w; set --tls-ca, --tls-cert and --tls-key, or FLOWKEEP_CA, FLOWKEEP_CERT and FLOWKEEP_KEY", err)
	}
	conn, err := grpc.NewClient("passthrough:///"+o.server, grpc.WithTransportCredentials(credentials.NewTLS(tls)))
	if err != nil {
		return none, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	out, err := inspect.Ask[T](ctx, conn, q)
	switch {
	case isConnection(err):
		return none, fmt.Errorf("netmaster does not answer at %s: is it running, and is --server (or FLOWKEEP_SERVER) right? %w", o.server, err)
	case status.Code(err) == codes.DeadlineExceeded:
		return none, fmt.Errorf("%w: no answer from %s within %v; is --server right, or is a longer --timeout needed?", errTimeout, o.server, o.timeout)
	}
	return out, err
}

// errTimeout is returned when netmaster did not answer in time.
var errTimeout = errors.New("netmaster does not answer")

// isConnection tells a server that is not there from one that says it cannot. Both are Unavailable; grpc-go's own words come
// first in what it reports.
func isConnection(err error) bool {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.Unavailable {
		return false
	}
	return slices.ContainsFunc([]string{"connection error: ", "error reading from server: ", "error reading server preface: ", "last connection error: ", "name resolver error: ",
		"closing transport due to: ", "the connection is ", "transport: ", "transport is closing"},
		func(words string) bool { return strings.HasPrefix(innermost(err), words) })
}

// innermost is the status' own message: status.FromError puts the text of what wraps it around it.
func innermost(err error) string {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Message()
	}
	return err.Error()
}

// message leaves gRPC's wrapping out.
func message(err error) string {
	if s, ok := status.FromError(err); ok && !isConnection(err) {
		return s.Message()
	}
	return err.Error()
}

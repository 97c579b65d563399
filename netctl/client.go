package main

import (
	"context"
	"fmt"
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
	if status.Code(err) == codes.Unavailable && isConnection(err) {
		return none, fmt.Errorf("netmaster does not answer at %s: is it running, and is --server (or FLOWKEEP_SERVER) right? %w", o.server, err)
	}
	return out, err
}

// isConnection tells a server that is not there from one that says it cannot.
func isConnection(err error) bool {
	text := err.Error()
	return strings.Contains(text, "connection error") || strings.Contains(text, "error reading server preface") || strings.Contains(text, "transport")
}

// message leaves gRPC's wrapping out.
func message(err error) string {
	if s, ok := status.FromError(err); ok && !isConnection(err) {
		return s.Message()
	}
	return err.Error()
}

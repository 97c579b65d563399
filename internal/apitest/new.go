package apitest

import "testing"

// Admin is the token of an administrator of a server that New starts.
const Admin = "admin"

// New starts an API server for a test, which it skips where none can be started, and ends it after the test. The server
// has the user Admin, and others by lines as for Start. The flags are for kube-apiserver.
func New(tb testing.TB, users string, flags ...string) *Server {
	tb.Helper()
	if why := Missing(); why != "" {
		tb.Skip(why)
	}
	s, err := Start(Admin+",admin,1,system:masters\n"+users, flags...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Stop)
	return s
}

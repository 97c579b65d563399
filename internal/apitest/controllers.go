package apitest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// StartControllers starts kube-controller-manager with these controllers, as the user of a token. Stop ends it.
func (s *Server) StartControllers(token string, controllers ...string) error {
	kubeconfig := filepath.Join(s.dir, "controllers.kubeconfig")
	text := fmt.Sprintf("{clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}], "+
		"users: [{name: u, user: {token: %q}}], contexts: [{name: c, context: {cluster: c, user: u}}], "+
		"current-context: c}", s.URL, token)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		return err
	}
	log := s.path
	defer func() { s.path = log }()
	return s.run(filepath.Join(Programs(), "kube-controller-manager"), "--kubeconfig", kubeconfig,
		"--leader-elect=false", "--secure-port", "0", "--controllers", strings.Join(controllers, ","))
}

// Package apitest starts a real API server with etcd, for tests: on loopback, without admission of ServiceAccounts and without controllers.
package apitest

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Server is an API server that serves. Stop ends it.
type Server struct {
	// URL is where it is; its certificate is its own.
	URL  string
	dir  string
	all  []*exec.Cmd
	path string
}

// Missing is why there can be none here; empty: there can.
func Missing() string {
	_, err := exec.LookPath("etcd")
	if _, missing := os.Stat(program()); missing != nil || err != nil {
		return "there is no kube-apiserver, or no etcd: the system tests build them"
	}
	return ""
}

func program() string {
	return filepath.Join(cmp.Or(os.Getenv("FLOWKEEP_CACHE"), "/var/cache/flowkeep"), "bin/kube-apiserver")
}

// Start starts one with RBAC, for users by lines TOKEN,NAME,UID[,GROUP].
func Start(tokens string) (*Server, error) {
	dir, err := os.MkdirTemp("", "apitest")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.start(tokens); err != nil {
		log := s.Log()
		s.Stop()
		return nil, fmt.Errorf("%w\n%s", err, log)
	}
	return s, nil
}

func (s *Server) start(tokens string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	keyFile, tokenFile := filepath.Join(s.dir, "sa.key"), filepath.Join(s.dir, "tokens")
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if err := errors.Join(
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600),
		os.WriteFile(tokenFile, []byte(tokens), 0o600),
		s.run("etcd", "--data-dir", s.data(), "--unsafe-no-fsync", "--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "error"),
		s.run(program(), "--etcd-servers", client, "--cert-dir", filepath.Join(s.dir, "certs"), "--secure-port", fmt.Sprint(ports[2]), "--bind-address", "127.0.0.1",
			"--service-account-issuer", "https://test", "--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile,
			"--token-auth-file", tokenFile, "--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount", "--service-cluster-ip-range", "10.0.0.0/24")); err != nil {
		return err
	}
	s.URL = fmt.Sprintf("https://127.0.0.1:%d", ports[2])
	return s.ready()
}

func (s *Server) run(name string, args ...string) error {
	c := exec.Command(name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.path = filepath.Join(s.dir, filepath.Base(name)+".log")
	log, err := os.Create(s.path)
	if err != nil {
		return err
	}
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return err
	}
	s.all = append(s.all, c)
	return nil
}

func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	anyone := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer anyone.CloseIdleConnections()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := anyone.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, errors.New("the API server does not come up"))
		case <-tick.C:
		}
	}
}

// Log is the end of what the API server has said.
func (s *Server) Log() string {
	log, _ := os.ReadFile(s.path)
	return string(log[max(0, len(log)-3000):])
}

// Backup keeps what etcd has now, as a snapshot of its disk does, for Restore.
func (s *Server) Backup() error {
	etcd := s.all[0].Process
	if err := etcd.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(os.CopyFS(s.backup(), os.DirFS(s.data())), etcd.Signal(syscall.SIGCONT))
}

// Restore has etcd, and the API server, begin anew with what was kept.
func (s *Server) Restore() error {
	all := s.all
	s.kill()
	if err := errors.Join(os.RemoveAll(s.data()), os.Rename(s.backup(), s.data())); err != nil {
		return err
	}
	for _, c := range all {
		if err := s.run(c.Path, c.Args[1:]...); err != nil {
			return err
		}
	}
	return s.ready()
}

func (s *Server) data() string   { return filepath.Join(s.dir, "etcd") }
func (s *Server) backup() string { return filepath.Join(s.dir, "backup") }

// Stop ends it, and removes what it wrote.
func (s *Server) Stop() {
	s.kill()
	_ = os.RemoveAll(s.dir)
}

func (s *Server) kill() {
	for i := len(s.all) - 1; i >= 0; i-- {
		_ = s.all[i].Process.Kill()
		_ = s.all[i].Wait()
	}
	s.all = nil
}

func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

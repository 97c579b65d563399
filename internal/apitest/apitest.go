// Package apitest starts a real API server with etcd, for tests: on loopback, without admission of ServiceAccounts and
// without controllers.
package apitest

import (
	"bytes"
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
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	// marks are the reservations of its ports.
	marks []net.Listener
}

// Missing returns the reason why no API server can be started here, or "".
func Missing() string {
	_, err := exec.LookPath("etcd")
	if _, missing := os.Stat(program()); missing != nil || err != nil {
		return "there is no kube-apiserver, or no etcd: the system tests build them"
	}
	return ""
}

func program() string { return filepath.Join(Programs(), "kube-apiserver") }

// Programs returns the directory of Kubernetes' programs.
func Programs() string {
	return filepath.Join(cmp.Or(os.Getenv("FLOWKEEP_CACHE"), "/var/cache/flowkeep"), "bin")
}

// Start starts one with RBAC, for users by lines TOKEN,NAME,UID[,GROUP]. The flags are for kube-apiserver.
func Start(tokens string, flags ...string) (*Server, error) {
	dir, err := os.MkdirTemp("", "apitest")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.start(tokens, flags); err != nil {
		log := s.Log()
		s.Stop()
		return nil, fmt.Errorf("%w\n%s", err, log)
	}
	return s, nil
}

func (s *Server) start(tokens string, flags []string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	ports, err := s.reservePorts(3)
	if err != nil {
		return err
	}
	keyFile, tokenFile := filepath.Join(s.dir, "sa.key"), filepath.Join(s.dir, "tokens")
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if err := errors.Join(
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600),
		os.WriteFile(tokenFile, []byte(tokens), 0o600),
		s.run("etcd", "--data-dir", s.data(), "--unsafe-no-fsync", "--listen-client-urls", client,
			"--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
			"--log-level", "error"),
		s.run(program(),
			append(flags, "--etcd-servers", client, "--cert-dir", filepath.Join(s.dir, "certs"), "--secure-port",
				fmt.Sprint(ports[2]), "--bind-address", "127.0.0.1",
				"--service-account-issuer", "https://test", "--service-account-key-file", keyFile,
				"--service-account-signing-key-file", keyFile,
				"--token-auth-file", tokenFile, "--authorization-mode", "RBAC", "--disable-admission-plugins",
				"ServiceAccount", "--service-cluster-ip-range", "10.0.0.0/24")...)); err != nil {
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
	if err := start(c); err != nil {
		return err
	}
	s.all = append(s.all, c)
	return nil
}

func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
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

// Log returns the last 3000 bytes of the API server's log.
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

// Restore restarts etcd and the API server from the backup.
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

// CPU returns the time that the API server and etcd have computed.
func (s *Server) CPU() (time.Duration, error) {
	var all time.Duration
	for _, c := range s.all {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, field := range fields[11:13] { // utime and stime, in ticks of 10 ms
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, err
			}
			all += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return all, nil
}

// Stop ends it, and removes what it wrote.
func (s *Server) Stop() {
	s.kill()
	for _, mark := range s.marks {
		_ = mark.Close()
	}
	_ = os.RemoveAll(s.dir)
}

func (s *Server) kill() {
	for i := len(s.all) - 1; i >= 0; i-- {
		_ = s.all[i].Process.Kill()
		_ = s.all[i].Wait()
	}
	s.all = nil
}

// Ports below those that Linux assigns by itself and below those of Services of type NodePort.
const (
	firstPort = 20000
	lastPort  = 29999
)

// reserve picks a port on loopback, and keeps it from other servers of this package until Stop, those of other
// processes included: a Unix socket in the abstract namespace stands for it, which the kernel closes with the process.
func (s *Server) reserve() (int, error) {
	for range lastPort - firstPort {
		port := firstPort + mathrand.IntN(lastPort-firstPort+1)
		mark, err := net.Listen("unix", fmt.Sprintf("@flowkeep-apitest-%d", port))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			_ = mark.Close()
			continue
		}
		s.marks = append(s.marks, mark)
		return port, l.Close()
	}
	return 0, fmt.Errorf("no port between %d and %d is free", firstPort, lastPort)
}

// reservePorts picks several ports.
func (s *Server) reservePorts(count int) (ports []int, err error) {
	for range count {
		port, err := s.reserve()
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

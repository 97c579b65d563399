package mtls

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
)

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// A request that asks for more than the name that who asks has is refused.
func TestCheckRequest(t *testing.T) {
	key := must[*ecdsa.PrivateKey](t)(NewKey())
	name := pkix.Name{CommonName: "flowkeep:node:node1"}
	made := func(r x509.CertificateRequest, key crypto.Signer) []byte {
		return must[[]byte](t)(x509.CreateCertificateRequest(rand.Reader, &r, key))
	}
	ca := must[[]byte](t)(asn1.Marshal(struct{ CA bool }{true}))
	flipped := must[[]byte](t)(NewRequest("node1", key))
	flipped[len(flipped)-1] ^= 1
	p384 := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	rsaKey := must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	for what, c := range map[string]struct {
		der  []byte
		want string
	}{
		"":                       {must[[]byte](t)(NewRequest("node1", key)), ""},
		"another node":           {must[[]byte](t)(NewRequest("node2", key)), "who asks is node node1"},
		"an administrator":       {made(x509.CertificateRequest{Subject: pkix.Name{CommonName: "flowkeep:admin", Organization: []string{"flowkeep:admins"}}}, key), "who asks is"},
		"administrators' too":    {made(x509.CertificateRequest{Subject: pkix.Name{CommonName: "flowkeep:node:node1", Organization: []string{"flowkeep:admins"}}}, key), "who asks is"},
		"two names":              {made(x509.CertificateRequest{Subject: pkix.Name{CommonName: "flowkeep:node:node1", ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "flowkeep:node:node1"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "flowkeep:node:node2"}}}}, key), "who asks is"},
		"no name":                {made(x509.CertificateRequest{}, key), "who asks is"},
		"a DNS name":             {made(x509.CertificateRequest{Subject: name, DNSNames: []string{ServiceName}}, key), "more than a name"},
		"an address":             {made(x509.CertificateRequest{Subject: name, IPAddresses: []net.IP{{10, 0, 0, 1}}}, key), "more than a name"},
		"to be an authority":     {made(x509.CertificateRequest{Subject: name, ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: ca}}}, key), "more than a name"},
		"something unheard of":   {made(x509.CertificateRequest{Subject: name, ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}}, key), "more than a name"},
		"a key one lacks":        {flipped, "does not hold"},
		"P-384":                  {made(x509.CertificateRequest{Subject: name}, p384), "P-256"},
		"RSA":                    {made(x509.CertificateRequest{Subject: name}, rsaKey), "P-256"},
		"Ed25519":                {made(x509.CertificateRequest{Subject: name}, edKey), "P-256"},
		"nothing":                {nil, "cannot be read"},
		"something after it":     {append(must[[]byte](t)(NewRequest("node1", key)), 0), "cannot be read"},
		"more than is read":      {make([]byte, MaxRequest+1), "bytes"},
		"a name in upper case":   {made(x509.CertificateRequest{Subject: pkix.Name{CommonName: "FLOWKEEP:NODE:node1"}}, key), "who asks is"},
		"a name with a zero":     {made(x509.CertificateRequest{Subject: pkix.Name{CommonName: "flowkeep:node:node1\x00"}}, key), "who asks is"},
		"a name with one behind": {made(x509.CertificateRequest{Subject: pkix.Name{CommonName: "flowkeep:node:node1,O=x"}}, key), "who asks is"},
	} {
		got, err := CheckRequest(c.der, "node1")
		if c.want == "" && (err != nil || !key.PublicKey.Equal(got)) || c.want != "" && (err == nil || got != nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

func FuzzCheckRequest(f *testing.F) {
	key := must[*ecdsa.PrivateKey](f)(NewKey())
	f.Add(must[[]byte](f)(NewRequest("node1", key)), "node1")
	f.Add([]byte{0x30, 0x80}, "")
	f.Fuzz(func(t *testing.T, der []byte, node string) {
		got, err := CheckRequest(der, node)
		if (got == nil) == (err == nil) {
			t.Errorf("%v, %v", got, err)
		}
		if err == nil {
			if r, err := x509.ParseCertificateRequest(der); err != nil || r.Subject.CommonName != nodePrefix+node || len(r.Extensions) > 0 {
				t.Errorf("%v was taken", r)
			}
		}
	})
}

func FuzzParseBundle(f *testing.F) {
	a := must[*Authority](f)(NewAuthority(time.Now(), time.Hour))
	f.Add(Encode(a.Cert, a.Cert))
	f.Add([]byte("# a comment\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseBundle(text)
		if err != nil {
			return
		}
		again, err := ParseBundle(Encode(list...))
		if err != nil || len(again) != len(list) {
			t.Errorf("%d certificates are %d when written: %v", len(list), len(again), err)
		}
	})
}

// What an authority signs is of use for what it is for, signs nothing itself, and ends with it.
func TestWhatIsSigned(t *testing.T) {
	now := time.Now()
	a := must[*Authority](t)(NewAuthority(now, time.Hour))
	key := must[*ecdsa.PrivateKey](t)(NewKey())
	pool := Pool([]*x509.Certificate{a.Cert})
	for usage, der := range map[x509.ExtKeyUsage][]byte{
		x509.ExtKeyUsageClientAuth: must[[]byte](t)(a.SignNode("node1", &key.PublicKey, now, 24*time.Hour)),
		x509.ExtKeyUsageServerAuth: must[[]byte](t)(a.SignServer([]string{"10.0.0.1", "host.example"}, &key.PublicKey, now, 24*time.Hour)),
	} {
		leaf := must[*x509.Certificate](t)(x509.ParseCertificate(der))
		for _, u := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{u}}); (err == nil) != (u == usage || Netmaster(leaf)) {
				t.Errorf("%v for %v: %v", leaf.Subject, u, err)
			}
		}
		if leaf.IsCA || !leaf.NotAfter.Equal(a.Cert.NotAfter) {
			t.Errorf("%v: authority %v, until %s", leaf.Subject, leaf.IsCA, leaf.NotAfter)
		}
		between := &Authority{leaf, key}
		grandchild := must[[]byte](t)(between.SignNode("node2", &key.PublicKey, now, time.Minute))
		below := must[*x509.Certificate](t)(x509.ParseCertificate(grandchild))
		if _, err := below.Verify(x509.VerifyOptions{Roots: pool, Intermediates: Pool([]*x509.Certificate{leaf}), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
			t.Errorf("%v signs others", leaf.Subject)
		}
	}
	if _, err := a.SignNode("node1", &key.PublicKey, now.Add(2*time.Hour), time.Hour); err == nil {
		t.Error("an authority signs after its end")
	}
	for _, name := range []string{"", "a/b", "a b", "a\x00", "é", ".", strings.Repeat("x", 254)} {
		if _, err := a.SignNode(name, &key.PublicKey, now, time.Minute); err == nil {
			t.Errorf("a certificate was signed for %q", name)
		}
	}
}

// memory is a source that a test changes.
type memory struct {
	mu sync.Mutex
	Material
	err error
}

func (m *memory) Current() (Material, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Material, m.err
}

// A connection ends when its peer's certificate expires, or its authority is no longer trusted; not because that cannot be known for a while.
func TestConnectionsEndWithTrust(t *testing.T) {
	now := time.Now()
	a, other := must[*Authority](t)(NewAuthority(now, time.Hour)), must[*Authority](t)(NewAuthority(now, time.Hour))
	for name, c := range map[string]struct {
		life   time.Duration
		change func(*memory)
		ends   bool
	}{
		"expires":     {slow.Stretch(2 * time.Second), func(*memory) {}, true},
		"distrusted":  {time.Hour, func(m *memory) { m.Trusted = Pool([]*x509.Certificate{other.Cert}) }, true},
		"one more":    {time.Hour, func(m *memory) { m.Trusted = Pool([]*x509.Certificate{other.Cert, a.Cert}) }, false},
		"not to know": {time.Hour, func(m *memory) { m.err = errors.New("away") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &memory{Material: Material{must[tls.Certificate](t)(NewServer(a, []string{"127.0.0.1"}, now, time.Hour)), Pool([]*x509.Certificate{a.Cert})}}
			creds := must[interface {
				ServerHandshake(net.Conn) (net.Conn, error)
			}](t)(testCredentials(m))
			key := must[*ecdsa.PrivateKey](t)(NewKey())
			der := must[[]byte](t)(a.SignNode("node1", &key.PublicKey, time.Now(), c.life))
			client := &tls.Config{RootCAs: m.Trusted, ServerName: "127.0.0.1", NextProtos: []string{"h2"}, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
			ours, theirs := net.Pipe()
			dialled := tls.Client(theirs, client)
			go func() { _ = dialled.Handshake() }()
			conn, err := creds.ServerHandshake(ours)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			m.mu.Lock()
			c.change(m)
			m.mu.Unlock()
			_ = dialled.SetReadDeadline(time.Now().Add(map[bool]time.Duration{true: time.Minute, false: 300 * time.Millisecond}[c.ends]))
			_, err = dialled.Read(make([]byte, 1))
			var timeout net.Error
			if late := errors.As(err, &timeout) && timeout.Timeout(); late == c.ends {
				t.Errorf("read: %v", err)
			}
		})
	}
}

type handshaker struct{ expiring }

func (h handshaker) ServerHandshake(c net.Conn) (net.Conn, error) {
	conn, _, err := h.expiring.ServerHandshake(c)
	return conn, err
}

func testCredentials(s Source) (interface {
	ServerHandshake(net.Conn) (net.Conn, error)
}, error) {
	c, err := ServerCredentials(s)
	if err != nil {
		return nil, err
	}
	e := c.(expiring)
	e.every = 20 * time.Millisecond
	return handshaker{e}, nil
}

// A file with a key is replaced as a whole, and only its owner reads it.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "certificate.pem")
	for _, text := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		got := must[[]byte](t)(os.ReadFile(path))
		info := must[os.FileInfo](t)(os.Stat(path))
		if string(got) != text || info.Mode().Perm() != 0o600 {
			t.Errorf("%q, %v", got, info.Mode())
		}
	}
	if files := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(files) != 1 {
		t.Errorf("%d files are left", len(files))
	}
	if WriteFile(filepath.Join(dir, "none", "x"), nil) == nil {
		t.Error("a file was written where there is no directory")
	}
}

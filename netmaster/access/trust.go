package access

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// trust is the front proxy configuration that the API server publishes in the ConfigMap
// extension-apiserver-authentication in kube-system.
type trust struct {
	pool                    *x509.CertPool
	names                   []string // accepted common names; empty: any
	user, uid, group, extra []string // header names; extra are prefixes
}

// parseTrust parses the ConfigMap. It fails if no front proxy is configured.
func parseTrust(data map[string]string) (*trust, error) {
	t := &trust{pool: x509.NewCertPool()}
	if !t.pool.AppendCertsFromPEM([]byte(data["requestheader-client-ca-file"])) {
		return nil, errors.New(
			"it names no authority of a front proxy: the API server needs --requestheader-client-ca-file, " +
				"--proxy-client-cert-file and --proxy-client-key-file",
		)
	}
	for key, to := range map[string]*[]string{
		"requestheader-allowed-names":        &t.names,
		"requestheader-username-headers":     &t.user,
		"requestheader-uid-headers":          &t.uid,
		"requestheader-group-headers":        &t.group,
		"requestheader-extra-headers-prefix": &t.extra,
	} {
		if data[key] == "" {
			continue
		}
		if err := json.Unmarshal([]byte(data[key]), to); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	if len(t.user) == 0 {
		return nil, errors.New("it names no header for users")
	}
	return t, nil
}

// verify returns an error unless a peer is the front proxy.
func (t *trust) verify(chain []*x509.Certificate) error {
	if t == nil {
		return errors.New("netmaster does not know the API server's front proxy (yet)")
	}
	if len(chain) == 0 {
		return errors.New(
			"only the API server's front proxy is served here; with an administrator's certificate use netctl --server",
		)
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	options := x509.VerifyOptions{
		Roots:         t.pool,
		Intermediates: between,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if _, err := chain[0].Verify(options); err != nil {
		return fmt.Errorf("not the API server's front proxy: %w", err)
	}
	if name := chain[0].Subject.CommonName; len(t.names) > 0 && !slices.Contains(t.names, name) {
		return fmt.Errorf("%q is not the API server's front proxy", name)
	}
	return nil
}

// User is the user on whose behalf the API server sends a request.
type User struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// userOf parses the front proxy's headers.
func (t *trust) userOf(h http.Header) (User, error) {
	u := User{Name: firstOf(h, t.user), UID: firstOf(h, t.uid), Extra: map[string][]string{}}
	if u.Name == "" {
		return u, errors.New("the API server does not say for whom it asks")
	}
	for _, name := range t.group {
		u.Groups = append(u.Groups, h.Values(name)...)
	}
	for name, values := range h {
		for _, prefix := range t.extra {
			if len(name) > len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
				key := extraKey(name[len(prefix):])
				u.Extra[key] = append(u.Extra[key], values...)
			}
		}
	}
	return u, nil
}

// extraKey decodes a key that was encoded for a header name.
func extraKey(text string) string {
	key, err := url.PathUnescape(strings.ToLower(text))
	if err != nil {
		return strings.ToLower(text)
	}
	return key
}

func firstOf(h http.Header, names []string) string {
	for _, name := range names {
		if v := h.Get(name); v != "" {
			return v
		}
	}
	return ""
}

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

// trust is what the API server publishes of its front proxy, in the ConfigMap extension-apiserver-authentication of kube-system:
// who may say for whom a request is.
type trust struct {
	pool                    *x509.CertPool
	names                   []string // common names; none: any of the authority
	user, uid, group, extra []string // headers; extra are prefixes
}

// parseTrust fails where there is no front proxy, or nothing can be said of it.
func parseTrust(data map[string]string) (*trust, error) {
	t := &trust{pool: x509.NewCertPool()}
	if !t.pool.AppendCertsFromPEM([]byte(data["requestheader-client-ca-file"])) {
		return nil, errors.New("it names no authority of a front proxy: the API server needs --requestheader-client-ca-file, --proxy-client-cert-file and --proxy-client-key-file")
	}
	for key, to := range map[string]*[]string{"requestheader-allowed-names": &t.names, "requestheader-username-headers": &t.user, "requestheader-uid-headers": &t.uid,
		"requestheader-group-headers": &t.group, "requestheader-extra-headers-prefix": &t.extra} {
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

// verify tells whether a peer is the front proxy, now.
func (t *trust) verify(chain []*x509.Certificate) error {
	if t == nil {
		return errors.New("netmaster does not know the API server's front proxy (yet)")
	}
	if len(chain) == 0 {
		return errors.New("only the API server's front proxy may ask here, with its certificate; with an administrator's certificate use netctl --server")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: t.pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("not the API server's front proxy: %w", err)
	}
	if name := chain[0].Subject.CommonName; len(t.names) > 0 && !slices.Contains(t.names, name) {
		return fmt.Errorf("%q is not the API server's front proxy", name)
	}
	return nil
}

// User is for whom the API server asks.
type User struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// userOf reads the front proxy's headers.
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

// extraKey undoes what keys go through to be headers.
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

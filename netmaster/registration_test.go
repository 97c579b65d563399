package main

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/mtls"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

func TestRegistration(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte("an authority"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printRegistration(&out, ca, []string{"10.0.0.1", "fd00::1", "::ffff:10.0.0.2"}, 7444); err != nil {
		t.Fatal(err)
	}
	slices := map[string][]string{}
	for part := range strings.SplitSeq(out.String(), "\n---\n") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(part), &object); err != nil {
			t.Fatalf("%v:\n%s", err, part)
		}
		if object["kind"] == "EndpointSlice" {
			var s discoveryv1.EndpointSlice
			if err := yaml.UnmarshalStrict([]byte(part), &s); err != nil || s.Labels["kubernetes.io/service-name"] != "netmaster" || *s.Ports[0].Port != 7444 {
				t.Errorf("%+v, %v", s, err)
			}
			for _, e := range s.Endpoints {
				slices[string(s.AddressType)] = append(slices[string(s.AddressType)], e.Addresses...)
			}
		}
	}
	if strings.Join(slices["IPv4"], ",") != "10.0.0.1,10.0.0.2" || strings.Join(slices["IPv6"], ",") != "fd00::1" {
		t.Errorf("%v", slices)
	}
	if !strings.Contains(out.String(), "caBundle: "+base64.StdEncoding.EncodeToString([]byte("an authority"))) || !strings.Contains(out.String(), "name: v1alpha1.inspect.flowkeep.io") {
		t.Errorf("%s", out.String())
	}
	for _, bad := range []string{"127.0.0.1", "::1", "0.0.0.0", "fe80::1%eth0", "netmaster.example", ""} {
		if err := printRegistration(&out, ca, []string{bad}, 7444); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Netmaster's certificate is of the name that the registration makes the API server expect.
func TestCertificateIsOfTheService(t *testing.T) {
	dir := t.TempDir()
	if err := mtls.Init(dir); err != nil {
		t.Fatal(err)
	}
	if err := mtls.IssueServer(dir, []string{"10.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	files := mtls.Files{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key")}
	if !mtls.Covers(files, mtls.ServiceName) || !mtls.Covers(files, "10.0.0.1") || mtls.Covers(files, "other.example") {
		t.Error("it is of other names")
	}
}

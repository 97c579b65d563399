package inspect

import (
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"shop/db":                            {Name: "shop/db"},
		"shop/db:5432":                       {Name: "shop/db", Port: "5432"},
		"shop/db:5432/tcp":                   {Name: "shop/db", Port: "5432", Protocol: "TCP"},
		"shop/db:web/UDP":                    {Name: "shop/db", Port: "web", Protocol: "UDP"},
		"shop/db/icmp":                       {Name: "shop/db", Protocol: "ICMP"},
		"shop/tcp":                           {Name: "shop/tcp"}, // a pod
		"shop/tcp/tcp":                       {Name: "shop/tcp", Protocol: "TCP"},
		"10.0.0.1":                           {Name: "10.0.0.1"},
		"10.0.0.1:53/UDP":                    {Name: "10.0.0.1", Port: "53", Protocol: "UDP"},
		"10.0.0.1/sctp":                      {Name: "10.0.0.1", Protocol: "SCTP"},
		"fd00::1":                            {Name: "fd00::1"},
		"fd00::1/icmpv6":                     {Name: "fd00::1", Protocol: "ICMP"},
		"[fd00::1]:80":                       {Name: "fd00::1", Port: "80"},
		"[fd00::1]:80/TCP":                   {Name: "fd00::1", Port: "80", Protocol: "TCP"},
		"world:443":                          {Name: "world", Port: "443"},
		"node1":                              {Name: "node1"},
		"node1.example.org:22":               {Name: "node1.example.org", Port: "22"},
		"world/udp":                          {Name: "world", Protocol: "UDP"},
		"node1:10250/TCP":                    {Name: "node1", Port: "10250", Protocol: "TCP"},
		"kube-system/dns:53/Tcp":             {Name: "kube-system/dns", Port: "53", Protocol: "TCP"},
		"svc/shop/db":                        {Name: "svc/shop/db"},
		"svc/shop/db:sql/tcp":                {Name: "svc/shop/db", Port: "sql", Protocol: "TCP"},
		"service/shop/db:53/UDP":             {Name: "service/shop/db", Port: "53", Protocol: "UDP"},
		"services/shop/db/sctp":              {Name: "services/shop/db", Protocol: "SCTP"},
		"svc/shop/tcp":                       {Name: "svc/shop/tcp"}, // a Service
		"svc/shop/tcp/tcp":                   {Name: "svc/shop/tcp", Protocol: "TCP"},
		"svc/shop":                           {Name: "svc/shop"}, // a pod
		"db.shop.svc:5432":                   {Name: "db.shop.svc", Port: "5432"},
		"db.shop.svc.cluster.local:5432/tcp": {Name: "db.shop.svc.cluster.local", Port: "5432", Protocol: "TCP"},
	} {
		if got, err := ParseTarget(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "shop/", "/db", "a/b/c", "shop/db:", "shop/db:0", "shop/db:65536", "shop/db:-1", "shop/db:We!b", "[fd00::1", "[fd00::1]80", "[fd00::1]:",
		"fe80::1%eth0", "shop/db:80/icmp", "Shop/DB", "shop/db:80/tcp/udp", "a b", "x\ny",
		"svc/shop/db/icmp", "svc/shop/", "svc//db", "svc/shop/db/x", "svc/Shop/db", "svc/shop/9db", "svc/shop/db:", "deploy/shop/db"} {
		if got, err := ParseTarget(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, text := range []string{"shop/db:5432/tcp", "[fd00::1]:80", "world", "10.0.0.1/udp", "svc/shop/db:sql/tcp", "db.shop.svc.cluster.local.:53/udp", "service/svc/tcp/tcp"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseTarget(text)
		if err != nil {
			return
		}
		namespace, service, isService := ServiceOf(got.Name)
		if ParseName(got.Name) != nil && !isService || checkPort(got.Port) != nil {
			t.Errorf("%q: %+v", text, got)
		}
		if isService && (!namespaceName.MatchString(namespace) || !dnsLabel.MatchString(service)) {
			t.Errorf("%q: %+v is Service %q of %q", text, got, service, namespace)
		}
		again := got.Name // written once more, it means the same
		if strings.Contains(again, ":") {
			again = "[" + again + "]"
		}
		if got.Port != "" {
			again += ":" + got.Port
		}
		if got.Protocol != "" {
			again += "/" + got.Protocol
		}
		if same, err := ParseTarget(again); err != nil || same != got {
			t.Errorf("%q is %+v, and %q %+v, %v", text, got, again, same, err)
		}
	})
}

func TestServiceOf(t *testing.T) {
	for name, want := range map[string]string{
		"svc/shop/db": "shop/db", "service/shop/db": "shop/db", "services/shop/db": "shop/db", "db.shop.svc": "shop/db", "db.shop.svc.cluster.local": "shop/db",
		"db.shop.svc.cluster.local.": "shop/db", "DB.Shop.SVC.Cluster.Local": "shop/db", "db.shop.svc.": "shop/db",
		"shop/db": "", "svc/db": "", "svc/a/b/c": "", "db.shop": "", "db.shop.pod.cluster.local": "", "a.db.shop.svc": "", "db..svc": "", "": "", "svc": "", "10.0.0.1": "",
	} {
		namespace, service, ok := ServiceOf(name)
		if got := namespace + "/" + service; ok != (want != "") || ok && got != want {
			t.Errorf("%q: %s, %v; want %q", name, got, ok, want)
		}
	}
}

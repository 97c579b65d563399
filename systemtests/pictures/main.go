// Pictures takes those of the page that the README shows, of a sandbox with the demo's shop in it.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/chrome"
	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

func main() {
	sandbox := flag.String("sandbox", "demo", "the sandbox that is up")
	to := flag.String("to", ".", "directory of the pictures")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	err := run(ctx, *sandbox, *to)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, sandbox, to string) error {
	c, err := cluster.Boot(ctx, cluster.Options{Name: sandbox, Reuse: true})
	if err != nil {
		return err
	}
	b, err := chrome.Start(ctx, c.ControlPlaneNS())
	if err != nil {
		return err
	}
	defer b.Close()
	for _, p := range pictures {
		if err := p.take(b, to); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// picture is a view of the page: where, in which colours, and when it is all there.
type picture struct {
	name, view, scheme string
	height             int64
	do                 string // a script
	until              string
}

// edit makes the database's policy one that another tier may pass, and asks what that would change.
const edit = `(() => { const a = document.querySelector("textarea"); a.value = a.value.replace("app: api", "app: web"); a.dispatchEvent(new Event("input"));
	document.querySelector(".editor button.main").click(); })()`

var pictures = []picture{
	{name: "page-graph", view: "graph", scheme: "light", height: 420, until: `document.querySelectorAll(".node").length >= 4`},
	{name: "page-explanation", view: "matrix?from=outside%2Fintruder&to=shop%2Fdb%3A5432%2Ftcp", scheme: "light", height: 560, until: `document.querySelector("#panel .way") && document.querySelector(".legend li")`},
	{name: "page-what-if", view: "policies?policy=shop%2Fdb", scheme: "dark", height: 900, until: `document.querySelector("textarea")?.value.includes("app: api")`, do: edit},
}

func (p *picture) take(b *chrome.Browser, to string) error {
	tab, err := b.Open(1200, p.height)
	if err != nil {
		return err
	}
	defer tab.Close()
	if err := tab.Scheme(p.scheme); err != nil {
		return err
	}
	if err := tab.Go("http://127.0.0.1:9442/#" + p.view); err != nil {
		return err
	}
	if err := tab.Until(p.until); err != nil {
		return err
	}
	if p.do != "" {
		if err := tab.Run(p.do); err != nil {
			return err
		}
		if err := tab.Until(`document.querySelector(".whatif .headline")`); err != nil {
			return err
		}
		if err := tab.Run(`document.querySelector(".whatif").scrollIntoView({block: "end"})`); err != nil {
			return err
		}
	}
	text, err := tab.Screenshot()
	if err != nil {
		return err
	}
	return write(filepath.Join(to, p.name+".png"), text)
}

// write packs a picture as tightly as PNG can.
func write(path string, text []byte) error {
	img, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, img); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/edge/internal/setup/bundle"
)

func unpack(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content)
	}
}

func TestWrite(t *testing.T) {
	files := []bundle.File{
		bundle.Text("status.txt", []byte("link up\n")),
		{Name: "kernel/routes.txt", Read: func(context.Context, int) ([]byte, error) { return nil, errors.New("there is no program ip") }},
		bundle.Text("logs/long.txt", []byte("first line\nsecond line\nthe last line\n")),
		{Name: "edgecore.yaml", YAML: true, Read: func(context.Context, int) ([]byte, error) {
			return []byte("dataDir: /var/lib/skerry\nmodules:\n  edged:\n    kubelet:\n      staticPodURLHeader: {Authorization: [\"Basic abc\"]}\n    bootstrapToken: short\n  x: {keyFile: /etc/key}\n"), nil
		}},
	}
	var out bytes.Buffer
	if err := bundle.Write(t.Context(), &out, "edge-17", files, bundle.NewScrubber(nil), 30, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, out.Bytes())
	if got["edge-17/status.txt"] != "link up\n" || !strings.Contains(got["edge-17/kernel/routes.txt.failed"], "there is no program ip") {
		t.Errorf("%q", got)
	}
	if long := got["edge-17/logs/long.txt"]; long != "second line\nthe last line\n" {
		t.Errorf("of a long file its end: %q", long)
	}
	out.Reset()
	if err := bundle.Write(t.Context(), &out, "edge-17", files, bundle.NewScrubber(nil), bundle.MaxFile, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	config := unpack(t, out.Bytes())["edge-17/edgecore.yaml"]
	if strings.Contains(config, "abc") || strings.Contains(config, "short") || !strings.Contains(config, "/etc/key") || !strings.Contains(config, "/var/lib/skerry") {
		t.Errorf("%s", config)
	}
}

func TestScrubber(t *testing.T) {
	pem := "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoGCCqGSM49\n-----END EC PRIVATE KEY-----"
	secrets := [][]byte{[]byte("hunter2-hunter2"), []byte("with \"quotes\" & more"), []byte(pem + "\n"), []byte("no")}
	s := bundle.NewScrubber(secrets)
	for name, text := range map[string]string{
		"as it is":          "env DB=hunter2-hunter2 end",
		"in base64":         "data: " + base64.StdEncoding.EncodeToString(secrets[0]),
		"in JSON":           `{"a":"with \"quotes\" \u0026 more"}`,
		"in a URL":          "http://x/?p=with+%22quotes%22+%26+more",
		"one line of a key": "MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoGCCqGSM49",
		"another key":       "a\n-----BEGIN PRIVATE KEY-----\nhunter3hunter3\n-----END PRIVATE KEY-----\n",
		"half a key":        "-----BEGIN PRIVATE KEY-----\nhunter3hunter3",
		"a token":           "got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.hunter3hunter3 x",
		"a header":          "Authorization: Bearer hunter3hunter3",
		"a proxy":           "HTTPS_PROXY=http://me:hunter3@proxy:3128",
		"a setting":         `registry_password="hunter3"`,
	} {
		t.Run(name, func(t *testing.T) {
			got := string(s.Scrub([]byte(text)))
			if strings.Contains(got, "hunter") || strings.Contains(got, "quotes") || strings.Contains(got, "MHcCAQEE") || !strings.Contains(got, bundle.Removed) {
				t.Errorf("%q", got)
			}
		})
	}
	if plain := "no token here, at http://proxy:3128/secret"; string(s.Scrub([]byte(plain))) != plain {
		t.Errorf("%q", s.Scrub([]byte(plain)))
	}
}

func FuzzScrub(f *testing.F) {
	s := bundle.NewScrubber([][]byte{[]byte("hunter2-hunter2")})
	f.Add([]byte("x hunter2-hunter2 y"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(s.Scrub(text), []byte("hunter2-hunter2")) {
			t.Error("it is still there")
		}
	})
}

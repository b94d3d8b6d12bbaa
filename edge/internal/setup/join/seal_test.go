package join_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/edge/internal/kernel/host/diskkey"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

func diskKey(t *testing.T, text string) *diskkey.Key {
	t.Helper()
	key, err := diskkey.Read(t.Context(), diskkey.Config{Command: "echo " + text})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A sealed identity can only be used with the key; one in the clear is refused if sealing is
// required.
func TestSealed(t *testing.T) {
	c := newCloud(t, cloudOptions{})
	o := options(t, c)
	key, another := diskKey(t, strings.Repeat("0a", 32)), diskKey(t, strings.Repeat("0b", 32))
	o.Seal = key
	pending := func(says string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(o.Dir, says))
		if err != nil || strings.Contains(string(text), "PRIVATE KEY") || !strings.Contains(string(text), "SKERRY SEALED KEY") {
			t.Errorf("%s: %s, %v", says, text, err)
		}
	}
	c.uses = 1
	server := o.Server
	o.Server, o.Timeout = "127.0.0.1:1", 1 // no server there: the join's key is kept for the next try
	if _, err := join.Join(logged(t), o); err == nil {
		t.Fatal("it joined without a server")
	}
	pending("join.key")
	o.Server, o.Timeout = server, 0
	if _, err := join.Join(logged(t), o); err != nil {
		t.Fatal(err)
	}
	pending("node.pem")
	if len(c.keys) != 1 {
		t.Errorf("%d requests", len(c.keys))
	}
	if id, err := join.Load(o.Dir, key, o.Clock); err != nil || id.Node() != edge1 {
		t.Error(err)
	}
	for says, seal := range map[string]join.Sealer{"another key": another, "names no key to open it": nil} {
		if _, err := join.Load(o.Dir, seal, o.Clock); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v; want %q", err, says)
		}
	}

	plain := options(t, newCloud(t, cloudOptions{}))
	if _, err := join.Join(logged(t), plain); err != nil {
		t.Fatal(err)
	}
	if _, err := join.Load(plain.Dir, key, plain.Clock); err == nil || !strings.Contains(err.Error(), "edgecore reset") {
		t.Errorf("an identity in the clear: %v", err)
	}
}

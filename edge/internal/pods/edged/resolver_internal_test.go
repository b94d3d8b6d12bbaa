package edged

import (
	"os"
	"path/filepath"
	"testing"
)

// The kubelet finds a resolv.conf whether the device has one or not, and the device's as soon as it
// is there; also where it is a link to nowhere.
func TestResolver(t *testing.T) {
	dir := t.TempDir()
	target, configured := filepath.Join(dir, "run"), filepath.Join(dir, "etc")
	check(t, os.Symlink(target, configured))
	m, err := New(Config{NodeName: "a", RootDir: filepath.Join(dir, "kubelet"), Kubelet: []byte("resolvConf: " + configured)})
	check(t, err)
	check(t, os.MkdirAll(m.RootDir(), 0o700))
	is := func(when, want string) {
		t.Helper()
		for _, again := range []bool{false, true} {
			changed, err := m.resolver.point()
			check(t, err)
			if again && changed {
				t.Errorf("%s: it changes again", when)
			}
		}
		got, err := os.ReadFile(m.server.ResolverConfig)
		check(t, err)
		if string(got) != want {
			t.Errorf("%s the kubelet reads %q, want %q", when, got, want)
		}
	}
	is("without a file", noServers)
	check(t, os.WriteFile(target, []byte("nameserver 192.0.2.1\n"), 0o600))
	is("with one", "nameserver 192.0.2.1\n")
	check(t, os.WriteFile(target, []byte("nameserver 192.0.2.2\n"), 0o600))
	is("with another", "nameserver 192.0.2.2\n")
	check(t, os.Remove(target))
	is("without it again", noServers)

	none, err := New(Config{NodeName: "a", RootDir: dir, Kubelet: []byte(`resolvConf: ""`)})
	check(t, err)
	if none.server.ResolverConfig != "" || none.resolver != nil {
		t.Errorf("without name servers by configuration the kubelet reads %q", none.server.ResolverConfig)
	}
}

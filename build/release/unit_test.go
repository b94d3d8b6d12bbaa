package main_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/cli"
)

// unit reads a unit file of systemd: the last value of each setting (systemd.syntax(7)).
func unit(t *testing.T, name string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			settings[key] = value
		}
	}
	return settings
}

// Pods outlive edgecore, and so must the addresses that are written down for them, below
// /run/skerry (podnet). By itself systemd empties that folder at each stop; "restart" keeps it at
// restarts alone (systemd.exec(5)).
func TestUnitKeepsAddressesOfPods(t *testing.T) {
	u := unit(t, "edgecore.service")
	if u["RuntimeDirectory"] != "skerry" || u["RuntimeDirectoryPreserve"] != "yes" {
		t.Errorf("RuntimeDirectory=%s, RuntimeDirectoryPreserve=%s: a stop deletes the addresses of pods that run", u["RuntimeDirectory"], u["RuntimeDirectoryPreserve"])
	}
	podnet, err := os.ReadFile("../../edge/internal/site/podnet/conflist.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(podnet), `"dataDir": "/run/`+u["RuntimeDirectory"]+"/") {
		t.Error("addresses of pods are not in the folder that the unit keeps")
	}
}

// The unit starts edgecore by the skerry-launch of the package, whose slots are in the standard
// data directory. An edgecore that panics is started again: Go's runtime ends with 2 then, and a
// version that is tried would never go back.
func TestUnitStartsTheLauncher(t *testing.T) {
	u := unit(t, "edgecore.service")
	if want := "/usr/lib/skerry/skerry-launch --dir /var/lib/skerry/bin -- /usr/bin/edgecore --config /etc/skerry/edgecore.yaml"; u["ExecStart"] != want {
		t.Errorf("ExecStart=%s, want %s", u["ExecStart"], want)
	}
	raw, err := os.ReadFile("../package/edgecore.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/usr/lib/skerry/skerry-launch", "/usr/share/skerry/version", "/usr/bin/edgecore"} {
		if !strings.Contains(string(raw), "dst: "+file+",") {
			t.Errorf("the package has no %s", file)
		}
	}
	for _, name := range []string{"edgecore.service", "cloudcore.service"} {
		if got, want := unit(t, name)["RestartPreventExitStatus"], strconv.Itoa(cli.BadConfig); got != want {
			t.Errorf("%s: RestartPreventExitStatus=%s, want %s", name, got, want)
		}
	}
}

// An edgecore that ends at once must not be started by queries for ever. By default systemd allows
// 20 starts in 2 s (systemd.socket(5)), which takes less time than edgecore needs to end.
func TestSocketTriggersAreBounded(t *testing.T) {
	u := unit(t, "edgecore-names.socket")
	interval, err1 := strconv.Atoi(u["TriggerLimitIntervalSec"])
	burst, err2 := strconv.Atoi(u["TriggerLimitBurst"])
	if err1 != nil || err2 != nil || burst < 1 || interval < 2*burst {
		t.Errorf("%s triggers in %s s", u["TriggerLimitBurst"], u["TriggerLimitIntervalSec"])
	}
}

// A release's tarballs hold the files of its packages: install.sh takes them where there is no
// package manager. tests/release compares those of a real release.
func TestTarballsHoldWhatPackagesDo(t *testing.T) {
	script, err := os.ReadFile("../release.sh")
	if err != nil {
		t.Fatal(err)
	}
	file := regexp.MustCompile(`(?m)^- \{src: ([^@"][^,]*), dst: /([^,]*),`)
	for program, called := range map[string]string{"edgecore": "skerry-edgecore", "cloudcore": "skerry-cloudcore", "kubectl-skerry": "kubectl-skerry"} {
		config, err := os.ReadFile("../package/" + program + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		files := strings.NewReplacer("$name", program, "$called", called).Replace(string(script))
		found := file.FindAllStringSubmatch(string(config), -1)
		if len(found) == 0 {
			t.Errorf("%s.yaml names no file", program)
		}
		for _, f := range found {
			if !strings.Contains(files, `"`+f[2]+"="+f[1]+`"`) {
				t.Errorf("release.sh packs no %s into the tarball of %s", f[2], program)
			}
		}
	}
}

// Each package, archive and image has the licences of what its programs contain, also those of code
// that their modules copied from others. The test's own binary stands for a program.
func TestReleaseHasLicences(t *testing.T) {
	script, err := os.ReadFile("../release.sh")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(script), "THIRD_PARTY_NOTICES=$tmp/notices_$"); n != 2 { // of archives, of images
		t.Errorf("release.sh packs the notices %d times", n)
	}
	for _, program := range []string{"edgecore", "cloudcore", "kubectl-skerry"} {
		config, err := os.ReadFile("../package/" + program + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"LICENSE, dst: ", `"NOTICE", dst: `, `"@NOTICES@", dst: `} {
			if !strings.Contains(string(config), "- {src: "+file+"/usr/share/doc/") {
				t.Errorf("%s.yaml has no %s", program, file)
			}
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	notices, err := exec.Command("go", "run", "-C", "../tools/release", "./notices", self).Output()
	if err != nil {
		t.Fatalf("notices: %v", err)
	}
	for _, want := range []string{"the Go standard library\n", "\nk8s.io/apimachinery@", " third_party/forked/golang/LICENSE\n"} {
		if !strings.Contains(string(notices), want) {
			t.Errorf("the notices of a program lack %q", want)
		}
	}
}

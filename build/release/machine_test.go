package main_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/build/release/archive"
)

// machine is a copy of this machine's file system (an overlay) without its package managers: $1 is
// a folder for it, $2 the release, $3 the script to run there. /log lists the requests to the
// machine's programs; the machine and all that was installed there go with the process.
const machine = `set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
cp -r "$2" "$1/release"
cp -r ../package "$1/package"
cd "$1" # its name may have a comma, which ends an option
mkdir up work root
mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root
mount --rbind /dev root/dev
mkdir -p root/build
mv package root/build/
mv release root/
exec chroot root /bin/sh -eu -c "$3"
`

// bare removes this machine's package managers and Skerry, and puts a systemd in their place that
// logs its requests.
const bare = `export LC_ALL=C PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
for dir in /usr/local/bin /usr/bin /bin /usr/sbin /sbin; do
	for name in dpkg dpkg-query apt-get rpm ctr systemctl systemd-sysusers edgecore cloudcore; do rm -f "$dir/$name"; done
done
rm -rf /run/* /etc/skerry /var/lib/skerry /var/lib/kubelet /etc/cni
fake() {
	printf '#!/bin/sh\n%s\n' "$2" >"/usr/local/bin/$1"
	chmod 755 "/usr/local/bin/$1"
}
: >/log
mkdir -p /run/systemd/system
fake systemctl 'echo "systemctl $*" >>/log'
fake systemd-sysusers 'grep -q "^u skerry " "$1" && echo "systemd-sysusers $1" >>/log'
`

// onMachine runs a script of shell there, below bare, and returns its exit code, its output and the
// log.
func onMachine(t *testing.T, release, script string) (code int, said, log string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts and chroot")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", machine, "sh", t.TempDir(), release,
		bare+"trap 'code=$?; echo ---; cat /log; exit $code' EXIT\n"+script)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	said, log, ok := strings.Cut(string(out), "---\n")
	if !ok {
		t.Fatalf("the machine has not come up: %v\n%s", err, out)
	}
	return cmd.ProcessState.ExitCode(), said, log
}

// twoKubernetes makes a release of Kubernetes 1.37 that has an edgecore of 1.36 too: each program
// prints its version, and packages are names alone. It has no signature.
func twoKubernetes(t *testing.T) (dir string) {
	t.Helper()
	dir, at := t.TempDir(), time.Unix(1e9, 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	for _, p := range []struct{ name, suffix string }{{"edgecore", ""}, {"edgecore", "+k8s1.36"}, {"cloudcore", ""}} {
		for _, format := range []string{"deb", "rpm"} {
			all = append(all, filepath.Join(dir, "skerry-"+p.name+"_1.0.0"+p.suffix+"_"+runtime.GOARCH+"."+format))
			must(os.WriteFile(all[len(all)-1], []byte(format), 0o644))
		}
		all = append(all, filepath.Join(dir, "skerry-"+p.name+"_v1.0.0"+p.suffix+"_linux_"+runtime.GOARCH+".tar.gz"))
		entries := []archive.Entry{
			{Name: "usr/bin/" + p.name, Mode: 0o755, Content: []byte("#!/bin/sh\necho " + p.name + " v1.0.0" + p.suffix + "\n")},
			{Name: "usr/lib/sysusers.d/skerry.conf", Mode: 0o644, Content: []byte("u skerry - - - -\n")},
		}
		must(archive.WriteFile(all[len(all)-1], entries, at))
	}
	pause := filepath.Join(dir, "pause_v1.0.0.oci.tar")
	must(os.WriteFile(pause, nil, 0o644))
	sums, err := archive.Sums(append(all, pause))
	must(err)
	must(os.WriteFile(filepath.Join(dir, "SHA256SUMS"), sums, 0o644))
	script, err := os.ReadFile("../install.sh")
	must(err)
	filled := strings.Replace(string(script), "\nVERSION=\nKUBERNETES=\n", "\nVERSION=v1.0.0\nKUBERNETES=1.37\n", 1)
	must(os.WriteFile(filepath.Join(dir, "install.sh"), []byte(filled), 0o755))
	var bundle []archive.Entry
	for _, name := range []string{"SHA256SUMS", filepath.Base(all[0]), filepath.Base(all[2]), filepath.Base(pause)} { // no +k8s
		e, err := archive.File(name, filepath.Join(dir, name))
		must(err)
		bundle = append(bundle, e)
	}
	must(archive.WriteFile(filepath.Join(dir, "airgap.tar"), bundle, at))
	return dir
}

// install runs install.sh of /release on the machine.
const install = `install() { sh /release/install.sh --sha256 "$(sha256sum </release/SHA256SUMS | cut -d' ' -f1)" "$@"; }
`

// An upgrade stays at the Kubernetes of the edgecore that is there: a kubelet newer than its
// cluster must not come by itself.
func TestInstallKeepsKubernetes(t *testing.T) {
	dir := twoKubernetes(t)
	deb := func(version string) string {
		return `
fake dpkg 'echo "dpkg $*" | sed "s|/.*/||" >>/log'
fake apt-get 'echo "apt-get $*" | sed "s|/.*/||" >>/log'
fake dpkg-query 'echo ` + version + `'
`
	}
	const (
		aptGet = "apt-get install -y --no-install-recommends "

		none = "fake dpkg-query 'exit 1'\n"
		rpm  = `
fake rpm 'case $1 in
-q) echo skerry-edgecore-0.9.0+k8s1.36-1.x86_64 ;;
*) echo "rpm $*" | sed "s|/.*/||" >>/log ;;
esac'
`
		tarball = "fake edgecore 'echo \"edgecore v0.9.0+k8s1.36 (Kubernetes v1.36.4)\"'; mv /usr/local/bin/edgecore /usr/bin/edgecore\n"
		root    = "mkdir -p /image/usr/bin; fake edgecore 'echo \"edgecore v0.9.0+k8s1.36 (Kubernetes v1.36.4)\"'; mv /usr/local/bin/edgecore /image/usr/bin/\n"
		now     = "; edgecore version >>/log"
	)
	arch := runtime.GOARCH
	for name, test := range map[string]struct {
		script string
		code   int
		said   string // a part of it
		log    string // without the requests to systemd
	}{
		"deb, none there":            {deb("") + none + "install /release", 0, "installed edgecore v1.0.0\n", aptGet + "skerry-edgecore_1.0.0_" + arch + ".deb\n"},
		"deb, the release's own":     {deb("0.9.0") + "install /release", 0, "installed edgecore v1.0.0\n", aptGet + "skerry-edgecore_1.0.0_" + arch + ".deb\n"},
		"deb, the one before":        {deb("0.9.0~rc1+k8s1.36") + "install /release", 0, "installed edgecore v1.0.0 with Kubernetes 1.36\n", aptGet + "skerry-edgecore_1.0.0+k8s1.36_" + arch + ".deb\n"},
		"deb, to the release's own":  {deb("1.0.0+k8s1.36") + "install --kubernetes 1.37 /release", 0, "installed edgecore v1.0.0\n", aptGet + "--allow-downgrades skerry-edgecore_1.0.0_" + arch + ".deb\n"},
		"deb, to the one before":     {deb("0.9.0") + "install --kubernetes 1.36 /release", 0, "with Kubernetes 1.36\n", aptGet + "--allow-downgrades skerry-edgecore_1.0.0+k8s1.36_" + arch + ".deb\n"},
		"deb, one that is not there": {deb("0.9.0+k8s1.35") + "install /release", 2, "no edgecore for " + arch + " with Kubernetes 1.35, which the one here has; in a cluster of 1.37 give --kubernetes 1.37\n", ""},
		"deb, from a bundle":         {deb("0.9.0") + "install /release/airgap.tar", 0, "installed edgecore v1.0.0\n", "dpkg -i skerry-edgecore_1.0.0_" + arch + ".deb\n"},
		"deb, not in a bundle":       {deb("0.9.0+k8s1.36") + "install /release/airgap.tar", 2, "this bundle has no edgecore with Kubernetes 1.36, which the one here has", ""},
		"deb, another program":       {deb("0.9.0+k8s1.36") + "install --program cloudcore /release", 0, "installed cloudcore v1.0.0\n", aptGet + "skerry-cloudcore_1.0.0_" + arch + ".deb\n"},
		"rpm":                        {rpm + "install /release", 0, "with Kubernetes 1.36\n", "rpm -U skerry-edgecore_1.0.0+k8s1.36_" + arch + ".rpm\n"},
		"rpm, to the release's own":  {rpm + "install --kubernetes 1.37 /release", 0, "installed edgecore v1.0.0\n", "rpm -U --oldpackage skerry-edgecore_1.0.0_" + arch + ".rpm\n"},
		"tarball":                    {tarball + "install /release" + now, 0, "with Kubernetes 1.36\n", "edgecore v1.0.0+k8s1.36\n"},
		"tarball, to the release's":  {tarball + "install --kubernetes 1.37 /release" + now, 0, "installed edgecore v1.0.0\n", "edgecore v1.0.0\n"},
		"another root":               {root + "install --root /image /release; /image/usr/bin/edgecore version >>/log", 0, "with Kubernetes 1.36\n", "edgecore v1.0.0+k8s1.36\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, said, log := onMachine(t, dir, install+test.script)
			var rest strings.Builder
			for line := range strings.Lines(log) {
				if !strings.HasPrefix(line, "systemctl ") {
					rest.WriteString(line)
				}
			}
			if code != test.code || !strings.Contains(said, test.said) {
				t.Errorf("exit code %d, want %d with %q, said:\n%s", code, test.code, test.said, said)
			}
			if diff := cmp.Diff(test.log, rest.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Where a tarball is unpacked install.sh does the work that the scripts of packages do elsewhere: a
// running program is the new one, cloudcore has its user. A device that has joined is not told to
// join.
func TestInstallTarballSettles(t *testing.T) {
	dir := twoKubernetes(t)
	const next = "next: edgecore check, then edgecore join --token-file FILE HOST\n"
	restarted := func(program string) string {
		return "systemctl daemon-reload\nsystemctl try-restart " + program + ".service\n"
	}
	for name, test := range map[string]struct{ script, said, log string }{
		"edgecore":        {"install /release", "installed edgecore v1.0.0\n" + next, restarted("edgecore")},
		"cloudcore":       {"install --program cloudcore /release", "installed cloudcore v1.0.0\n", "systemd-sysusers /usr/lib/sysusers.d/skerry.conf\n" + restarted("cloudcore")},
		"without systemd": {"rm -r /run/systemd; install /release", "installed edgecore v1.0.0\n" + next, ""},
		"another root":    {"install --root /image /release", "installed edgecore v1.0.0\n" + next, ""},
		"rpm and a bundle": {
			"fake rpm 'exit 1'; install /release/airgap.tar",
			"installed edgecore v1.0.0\ncontainerd does not run: start it and run this again, so that it gets the image of pods' sandboxes\n" + next, restarted("edgecore"),
		},
		"joined": {
			"mkdir -p /etc/skerry /var/lib/skerry/identity; touch /etc/skerry/edgecore.yaml /var/lib/skerry/identity/node.pem; install /release",
			"installed edgecore v1.0.0\n", restarted("edgecore"),
		},
		"joined, with another folder": {
			"mkdir -p /etc/skerry /data/identity; echo 'dataDir: /data # here' >/etc/skerry/edgecore.yaml; touch /data/identity/node.pem; install /release",
			"installed edgecore v1.0.0\n", restarted("edgecore"),
		},
		"after a reset": {"mkdir -p /etc/skerry; touch /etc/skerry/edgecore.yaml; install /release", "installed edgecore v1.0.0\n" + next, restarted("edgecore")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, said, log := onMachine(t, dir, install+test.script)
			if diff := cmp.Diff([]any{0, test.said, test.log}, []any{code, said, log}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The scripts of edgecore's package at its removal.
func TestPackageGoes(t *testing.T) {
	const state = `mkdir -p /var/lib/skerry/identity /run/skerry/cni/skerry /etc/skerry /etc/cni/net.d /var/lib/kubelet/pki /var/lib/kubelet/pods
cd /var/lib/kubelet
touch /var/lib/skerry/store.db /run/skerry/cni/skerry/10.88.0.2 /etc/skerry/edgecore.yaml pki/kubelet-server-2026-01-02-03-04-05.pem pki/kubelet.crt pki/kubelet.key pki/kubelet-client-current.pem
ln -s kubelet-server-2026-01-02-03-04-05.pem pki/kubelet-server-current.pem
echo '{"dataDir": "/run/skerry/cni"}' >/etc/cni/net.d/10-skerry.conflist
`
	const left = `; for d in /var/lib/skerry /run/skerry /etc/skerry /etc/cni/net.d /var/lib/kubelet; do [ ! -d $d ] || find $d ! -type d; done | sort`
	const purged = "/var/lib/kubelet/pki/kubelet-client-current.pem\n"
	const all = `/etc/cni/net.d/10-skerry.conflist
/etc/skerry/edgecore.yaml
/run/skerry/cni/skerry/10.88.0.2
/var/lib/kubelet/pki/kubelet-client-current.pem
/var/lib/kubelet/pki/kubelet-server-2026-01-02-03-04-05.pem
/var/lib/kubelet/pki/kubelet-server-current.pem
/var/lib/kubelet/pki/kubelet.crt
/var/lib/kubelet/pki/kubelet.key
/var/lib/skerry/store.db
`
	// A query would start edgecore.service again while its socket listens.
	const stopped = "systemctl disable --quiet --now edgecore-names.socket edgecore.service\n"
	for name, test := range map[string]struct{ script, left, log string }{
		"removed (dpkg)":    {"sh /build/package/edgecore/prerm remove; sh /build/package/edgecore/postrm remove", all, stopped + "systemctl daemon-reload\n"},
		"removed (rpm)":     {"sh /build/package/edgecore/prerm 0; sh /build/package/edgecore/postrm 0", all, stopped + "systemctl daemon-reload\n"},
		"upgraded (dpkg)":   {"sh /build/package/edgecore/prerm upgrade 1.0.0", all, ""},
		"purged":            {"sh /build/package/edgecore/postrm purge", purged, "systemctl daemon-reload\n"},
		"kubeadm came then": {"echo >/var/lib/kubelet/config.yaml; sh /build/package/edgecore/postrm purge; rm /var/lib/kubelet/config.yaml", kubeletFiles(all), "systemctl daemon-reload\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, said, log := onMachine(t, t.TempDir(), state+test.script+left)
			if diff := cmp.Diff([]any{0, test.left, test.log}, []any{code, said, log}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// kubeletFiles are those lines that name a file of the kubelet.
func kubeletFiles(all string) string {
	var of strings.Builder
	for line := range strings.Lines(all) {
		if strings.HasPrefix(line, "/var/lib/kubelet/") {
			of.WriteString(line)
		}
	}
	return of.String()
}

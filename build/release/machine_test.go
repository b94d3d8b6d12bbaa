package main_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// machine is a copy of this machine's file system (an overlay) without its package managers: $1 is
// a folder for it, $2 the release, $3 what runs there. /log is what the machine's programs were
// asked for; the machine and all that was installed there go with the process.
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

// bare takes what this machine has of package managers and of Skerry, and puts a systemd in their
// place that writes down what it is asked.
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

// onMachine runs a script of shell there, below bare, and gives its exit code, what it printed and
// the log.
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

// What the scripts of edgecore's package do when it goes.
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

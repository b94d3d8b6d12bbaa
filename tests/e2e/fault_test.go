package e2e_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	cloudcoreKubeconfig = "/etc/skerry/cloudcore.kubeconfig"
	dataDir             = "/var/lib/skerry"
	storeFile           = dataDir + "/store.db"
)

// faultProxy puts a proxy between every cloudcore and kube-apiserver until the test ends. It lets
// everything pass until a fault is set.
func (s *system) faultProxy() *faultproxy.Proxy {
	s.T.Helper()
	const pki = "/var/lib/kubeplane/pki/"
	read := func(file string) []byte {
		raw, err := os.ReadFile(s.path(trial.Cloud, file))
		s.Check(err)
		return raw
	}
	// The proxy has the API server's own certificate, and stands at its address: to cloudcore it is
	// the API server.
	certificate, err := tls.X509KeyPair(read(pki+"apiserver.crt"), read(pki+"apiserver.key"))
	s.Check(err)
	cloud, err := s.Trial.Host(trial.Cloud)
	s.Check(err)
	server := lab.Cloud().String() + ":6443"
	proxy, err := faultproxy.New(&url.URL{Scheme: "https", Host: server}, read(pki+"ca.crt"), cloud.Dial)
	s.Check(err)
	var l net.Listener
	s.Check(cloud.Do(func() (err error) {
		l, err = net.Listen("tcp", lab.Cloud().String()+":0")
		return err
	}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Serve(ctx, l, certificate) }()

	direct := read(cloudcoreKubeconfig)
	s.T.Cleanup(func() {
		s.redirect(direct)
		stop()
		if err := <-ended; err != nil {
			s.T.Error(err)
		}
	})
	s.redirect([]byte(strings.ReplaceAll(string(direct), server, l.Addr().String())))
	return proxy
}

// redirect gives every cloudcore a kubeconfig, and starts it again with that.
func (s *system) redirect(kubeconfig []byte) {
	s.T.Helper()
	ctx := context.Background()
	for _, replica := range options().Replicas() {
		s.Check(os.WriteFile(s.path(replica, cloudcoreKubeconfig), kubeconfig, 0o600))
		if s.running(replica, "cloudcore") {
			s.Check(s.Trial.Stop(ctx, replica, "cloudcore"))
		}
		s.Check(s.Trial.Start(ctx, replica, "cloudcore"))
	}
}

// running reports whether a program of a replica or an edge runs.
func (s *system) running(host, program string) bool {
	s.T.Helper()
	err := s.Trial.Signal(context.Background(), host, program, syscall.Signal(0))
	return err == nil
}

// smallDisk puts a device's data on a disk of its own with that many MiB, until the test ends.
// edgecore is started again, twice; its pods keep running.
func (s *system) smallDisk(node string, size int) {
	s.T.Helper()
	s.disk(node, size, "mount -t tmpfs -o mode=700,size=${size}m small /run/small")
}

// realDisk puts a device's data on a file system of a block device, as smallDisk does.
func (s *system) realDisk(node string) {
	s.T.Helper()
	s.disk(node, 64, "truncate -s ${size}M /run/small.img && mkfs.ext4 -q -F /run/small.img && "+mountRealDisk+" && rmdir /run/small/lost+found && chmod 700 /run/small")
}

const mountRealDisk = "mount -o loop,errors=remount-ro /run/small.img /run/small"

func (s *system) disk(node string, room int, mount string) {
	s.T.Helper()
	s.Check(s.Trial.Stop(s.T.Context(), node, "edgecore"))
	s.onHost(node, "sh", "-c", fmt.Sprintf("size=$(($(du -sm %[2]s | cut -f1) + %[1]d)); mkdir -p /run/small && %[3]s && cp -a %[2]s/. /run/small/ && sync -f /run/small && mount --bind /run/small %[2]s",
		room, dataDir, mount))
	s.T.Cleanup(func() {
		ctx := context.Background()
		if s.running(node, "edgecore") {
			s.Check(s.Trial.Stop(ctx, node, "edgecore"))
		}
		var errs strings.Builder
		code, err := s.Trial.Exec(ctx, node, trial.Streams{Err: &errs}, nil, "sh", "-c", fmt.Sprintf(
			"rm -f %[1]s/fill && umount %[1]s && rm -rf %[1]s/* && cp -a /run/small/. %[1]s/ && umount /run/small && rm -f /run/small.img", dataDir))
		if err != nil || code != 0 {
			s.T.Errorf("giving %s its disk back: %v %s", node, err, errs.String())
		}
		s.Check(s.Trial.Start(ctx, node, "edgecore"))
	})
	s.Start(node, "edgecore")
	s.waitLinked(node)
}

// fill leaves no room on a small disk; it can be repeated, as the store may shrink.
func (s *system) fill(node string) {
	s.T.Helper()
	s.onHost(node, "sh", "-c", "dd if=/dev/zero of="+dataDir+"/fill bs=4k oflag=append conv=notrunc 2>/dev/null; true")
}

// makeRoom takes back what fill took.
func (s *system) makeRoom(node string) {
	s.T.Helper()
	s.onHost(node, "rm", "-f", dataDir+"/fill")
}

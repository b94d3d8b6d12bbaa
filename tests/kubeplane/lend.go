package kubeplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// ResetSocket is the name of the socket, in Config.Dir, at which a lent control plane is reset:
	// a client reads ResetDone, or the error.
	ResetSocket = "reset.sock"
	ResetDone   = "reset\n"
	// BorrowedLock is the name of the file, in Config.Dir, that the borrower of a control plane
	// keeps locked (flock(2)).
	BorrowedLock = "borrowed"
	idleCheck    = 3 * time.Second
	// resetTimeout bounds one reset, which is usually done at once. The client gets the failure.
	resetTimeout = 20 * time.Second
	// resetPause is for the controllers' late writes about deleted objects.
	resetPause = 20 * time.Millisecond
	// operations is how many changes etcd takes in one transaction (embed.DefaultMaxTxnOps).
	operations = 128
	stored     = "/registry/"
)

// endWith ends the process, and removes dir, as soon as another process has ended, in whichever
// way: a control plane that is lent has no data to keep.
func endWith(owner int, dir string) error {
	fd, err := unix.PidfdOpen(owner, 0)
	if err != nil {
		return fmt.Errorf("--owner: opening process %d: %w", owner, err)
	}
	go func() {
		// A pidfd becomes readable when its process has ended (pidfd_open(2)).
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if err == nil && n > 0 {
				break
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				klog.ErrorS(err, "Failed to watch the owner, ending")
				break
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			klog.ErrorS(err, "Failed to remove the directory", "directory", dir)
		}
		klog.Flush()
		os.Exit(0)
	}()
	return nil
}

// endIdle ends the process, and removes dir, when nobody has borrowed it for so long. It holds the
// borrower's lock until then, so that nobody can borrow it while it ends.
func endIdle(dir string, after time.Duration) error {
	lock, err := os.OpenFile(filepath.Join(dir, BorrowedLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("opening the borrower's lock: %w", err)
	}
	go func() {
		for idle := time.Duration(0); ; idle += idleCheck {
			time.Sleep(idleCheck)
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
				idle = 0
				continue
			}
			if idle >= after {
				break
			}
			_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
		}
		if err := os.RemoveAll(dir); err != nil {
			klog.ErrorS(err, "Failed to remove the directory", "directory", dir)
		}
		klog.Flush()
		os.Exit(0)
	}()
	return nil
}

// lender resets the stored objects to those from when the control plane became ready. It writes to
// etcd itself, beneath kube-apiserver, which learns of it as of any other write: no finalizer and
// no admission is in the way, and no other process is needed.
type lender struct {
	etcd  *clientv3.Client
	first map[string][]byte
}

// lend serves resets, one after the other, until ctx ends.
func lend(ctx context.Context, server *embed.Etcd, dir string, idle time.Duration) error {
	l := &lender{etcd: v3client.New(server.Server)}
	var err error
	if l.first, err = l.all(ctx); err != nil {
		return err
	}
	path := filepath.Join(dir, ResetSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing an old socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listening for resets: %w", err)
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	if err := endIdle(dir, idle); err != nil {
		return err
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			answer := ResetDone
			if err := l.reset(ctx); err != nil {
				answer = err.Error()
			}
			_, _ = io.WriteString(c, answer) // a client that has gone needs no answer
			c.Close()
		}
	}()
	return nil
}

func (l *lender) all(ctx context.Context) (map[string][]byte, error) {
	got, err := l.etcd.Get(ctx, stored, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("reading all that is stored: %w", err)
	}
	all := make(map[string][]byte, len(got.Kvs))
	for _, kv := range got.Kvs {
		all[string(kv.Key)] = kv.Value
	}
	return all, nil
}

// reset removes objects until none is left to remove: active controllers may write once more.
// Changed objects are reset once, since some of them change by themselves.
func (l *lender) reset(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, resetTimeout)
	defer cancel()
	for round := 0; ; round++ {
		now, err := l.all(ctx)
		if err != nil {
			return err
		}
		changes, left := l.changes(now, round == 0)
		if len(changes) == 0 && round > 0 {
			return nil
		}
		for len(changes) > 0 {
			n := min(len(changes), operations)
			if _, err := l.etcd.Txn(ctx).Then(changes[:n]...).Commit(); err != nil {
				return fmt.Errorf("putting %d objects back: %w", n, err)
			}
			changes = changes[n:]
		}
		select {
		case <-time.After(resetPause):
		case <-ctx.Done():
			return fmt.Errorf("putting a control plane back: %w; the last that came again was %s", context.Cause(ctx), left)
		}
	}
}

// changes are the writes that turn the stored state into the first one, and the name of one object
// that they remove.
func (l *lender) changes(now map[string][]byte, whole bool) (changes []clientv3.Op, removed string) {
	for key := range now {
		if _, had := l.first[key]; !had && !l.keeps(key) {
			changes = append(changes, clientv3.OpDelete(key))
			removed = key
		}
	}
	for key, value := range l.first {
		// An event that ended by itself would stay for good.
		if whole && !l.keeps(key) && !strings.HasPrefix(key, stored+"events/") && !bytes.Equal(now[key], value) {
			changes = append(changes, clientv3.OpPut(key, string(value)))
		}
	}
	return changes, removed
}

// keeps reports the keys that the control plane itself makes or renews, and may make later than it
// is ready: the accounts and leases of its own components, and the default objects of each
// namespace.
func (l *lender) keeps(key string) bool {
	for _, own := range []string{"serviceaccounts/kube-system/", "leases/kube-system/", "masterleases/", "servicecidrs/", "peerserverleases/"} {
		if strings.HasPrefix(key, stored+own) {
			return true
		}
	}
	for _, given := range []string{"serviceaccounts/*/default", "configmaps/*/kube-root-ca.crt"} {
		before, after, _ := strings.Cut(stored+given, "*")
		namespace, found := strings.CutPrefix(key, before)
		if !found {
			continue
		}
		if namespace, found = strings.CutSuffix(namespace, after); found {
			_, first := l.first[stored+"namespaces/"+namespace]
			return first
		}
	}
	return strings.HasSuffix(key, "/default/kubernetes") || strings.HasPrefix(key, stored+"endpointslices/default/kubernetes")
}

package console

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/skerry-io/skerry/common/tunnel"
)

const (
	// refuseTimeout is for a client that is refused to say its version of RFB.
	refuseTimeout = 5 * time.Second
	// waiting bounds the clients that are refused at once: one more is closed without a word.
	waiting = 4
)

// Console is a listener that leads to one machine.
type Console struct {
	// Set when it is made, never changed.
	consoles *Consoles
	request  Request
	end      net.Conn // ends with the machine, and with the link
	listener net.Listener

	state State // guarded by consoles.mu
}

// State is how it is now.
func (k *Console) State() State {
	k.consoles.mu.Lock()
	defer k.consoles.mu.Unlock()
	return k.state
}

// Serve carries one client at a time until ctx ends, the time is up, or the machine or the link ends. It returns why; the port is closed then, and no client is left.
func (k *Console) Serve(ctx context.Context) string {
	defer k.consoles.leave(k)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	defer all.Wait()
	late := time.AfterFunc(time.Until(k.State().Until), func() { cancel(errors.New("the time is up")) })
	defer late.Stop()
	all.Go(func() {
		_, err := k.end.Read(make([]byte, 1))
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("the cloud ended it")
		}
		cancel(errors.New(reasonOf(err)))
	})
	defer context.AfterFunc(ctx, func() { _, _ = k.end.Close(), k.listener.Close() })()
	k.accept(ctx, &all)
	cancel(errors.New("its listener failed")) // where it did; nothing otherwise
	return context.Cause(ctx).Error()
}

// accept hands clients on until the listener is closed.
func (k *Console) accept(ctx context.Context, all *sync.WaitGroup) {
	user := make(chan struct{}, 1)
	refused := make(chan struct{}, waiting)
	for {
		client, err := k.listener.Accept()
		if err != nil {
			return
		}
		select {
		case user <- struct{}{}:
			all.Go(func() {
				defer func() { <-user }()
				k.carry(ctx, client)
			})
			continue
		default:
		}
		select {
		case refused <- struct{}{}:
			all.Go(func() {
				defer func() { <-refused }()
				k.refuse(ctx, client, fmt.Sprintf("the console of %s has a user already", k.request.machine()))
			})
		default:
			_ = client.Close()
		}
	}
}

// carry leads one client to the machine.
func (k *Console) carry(ctx context.Context, client net.Conn) {
	from, _ := netip.ParseAddrPort(client.RemoteAddr().String())
	k.consoles.set(k, from)
	defer k.consoles.set(k, netip.AddrPort{})
	asking, cancel := context.WithTimeout(ctx, openTimeout)
	far, err := k.consoles.config.Open(asking, k.request.target(k.request.kind()))
	cancel()
	if err != nil {
		k.refuse(ctx, client, reasonOf(err))
		return
	}
	tunnel.Splice(ctx, client, far)
}

// refuse closes a client's connection and, as well as its protocol can, says why.
func (k *Console) refuse(ctx context.Context, client net.Conn, why string) {
	defer context.AfterFunc(ctx, func() { _ = client.Close() })()
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(refuseTimeout))
	if k.request.Serial {
		_, _ = fmt.Fprintf(client, "%s\r\n", why)
		return
	}
	_ = refuseRFB(client, why) // it may have gone
}

// refuseRFB fails a handshake with a reason, which clients show (RFC 6143, section 7.1.2; for versions before 3.7 its appendix A).
func refuseRFB(client io.ReadWriter, why string) error {
	const version = "RFB 003.008\n"
	if _, err := io.WriteString(client, version); err != nil {
		return err
	}
	its := make([]byte, len(version))
	if _, err := io.ReadFull(client, its); err != nil {
		return err
	}
	answer := []byte{0} // no security types
	if strings.HasPrefix(string(its), "RFB 003.00") && its[10] < '7' {
		answer = make([]byte, 4) // the security type "invalid"
	}
	answer = binary.BigEndian.AppendUint32(answer, uint32(len(why)))
	_, err := client.Write(append(answer, why...))
	return err
}

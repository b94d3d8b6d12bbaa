package link

import (
	"fmt"
	"strings"
)

// CloseCode gives the reason a link ended and whether dialling again can help. The numbers are of
// RFC 6455's private range (4000-4999), and QUIC application error codes likewise.
type CloseCode uint16

const (
	CloseShutdown   CloseCode = 4000 // the peer stops or restarts: dial again at once, perhaps another replica
	CloseReplaced   CloseCode = 4001 // a newer session of the same node took over
	CloseOverloaded CloseCode = 4002 // too many; the reason carries "retry-after=SECONDS"
	CloseTimeout    CloseCode = 4003 // the peer was silent for too long
	CloseProtocol   CloseCode = 4004 // bytes that are no frame, a topic that is not known, a message out of turn
	CloseTooLarge   CloseCode = 4005 // a frame or message above the bound
	CloseNetwork    CloseCode = 4006 // never sent: the network ended the link
	CloseInternal   CloseCode = 4007

	CloseForbidden CloseCode = 4400 // the certificate is no node's, or is banned
	CloseVersion   CloseCode = 4401 // the two ends speak no common version of the protocol
	CloseGone      CloseCode = 4402 // the node was removed from the cluster
)

// Reconnect reports whether dialling again can help without a change by an operator first.
func (c CloseCode) Reconnect() bool { return c < 4400 }

// CloseError is how a link ended.
type CloseError struct {
	Code   CloseCode
	Reason string
	Remote bool  // the peer closed it
	Err    error // the network's error, if any
}

// abnormalClosure is how github.com/gorilla/websocket begins an error without a close frame of the
// peer (RFC 6455, 7.1.5).
const abnormalClosure = "websocket: close 1006 (abnormal closure): "

func (e *CloseError) Error() string {
	if e.Code == CloseNetwork && e.Err != nil { // neither end closed it
		return fmt.Sprintf("connection lost (%s)", strings.TrimPrefix(e.Err.Error(), abnormalClosure))
	}
	who := "this end"
	if e.Remote {
		who = "the peer"
	}
	if e.Err != nil {
		return fmt.Sprintf("link closed by %s: %s (%d): %v", who, e.Reason, e.Code, e.Err)
	}
	return fmt.Sprintf("link closed by %s: %s (%d)", who, e.Reason, e.Code)
}

func (e *CloseError) Unwrap() error { return e.Err }

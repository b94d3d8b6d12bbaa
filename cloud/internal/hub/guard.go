package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/link"
)

// errPanic is what a panic in a part becomes. Its text goes over the link and says nothing of our
// inside; the log has the rest.
var errPanic = errors.New("internal error in cloudcore")

// guard turns a panic of a part into an error: one session's bad luck is not the others'.
func guard(ctx context.Context, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(errPanic, "A part panicked", "panic", p, "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	return f()
}

// closeError finds how a link ended.
func closeError(err error) *link.CloseError {
	if end, ok := errors.AsType[*link.CloseError](err); ok {
		return end
	}
	return &link.CloseError{Code: link.CloseInternal, Reason: fmt.Sprint(err), Err: err}
}

// closeConn ends a link. The reason is cut to what fits into a websocket's close frame: RFC 6455,
// 5.5, leaves 123 bytes.
func closeConn(conn link.Conn, code link.CloseCode, reason string) {
	const most = 123
	if len(reason) > most {
		reason = reason[:most]
	}
	_ = conn.Close(code, reason) // the link ends in any case, and conn.Err says how
}

func address(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

package cloudhub

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/recovery"
)

// guard turns a panic of a part into an error: one session's bad luck is not the others'. Its text
// goes over the link.
func guard(ctx context.Context, f func() error) error {
	err := recovery.Do(ctx, "hub", f)
	if errors.Is(err, recovery.ErrPanic) {
		return errPanic
	}
	return err
}

// errPanic tells the edge that the error is in cloudcore.
var errPanic = fmt.Errorf("%w in cloudcore", recovery.ErrPanic)

// closeError finds how a link ended.
func closeError(err error) *link.CloseError {
	if end, ok := errors.AsType[*link.CloseError](err); ok {
		return end
	}
	return &link.CloseError{Code: link.CloseInternal, Reason: fmt.Sprint(err), Err: err}
}

// closeConn ends a link. The reason is cut to the size of a websocket's close frame: RFC 6455, 5.5,
// leaves 123 bytes.
func closeConn(conn link.Conn, code link.CloseCode, reason string) {
	const most = 123
	if len(reason) > most {
		reason = reason[:most]
	}
	_ = conn.Close(code, reason) // the link ends in any case, and conn.Err returns the reason
}

func address(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

package link

import (
	"errors"
	"io"
	"slices"
	"syscall"
)

// Refused reports whether err is the error of a dial where a machine answered and has no cloudcore
// for us: the connection was refused, or ended before the link was open. An end with a code is the
// link's own, of a cloudcore that was there: it had the work of a handshake with us.
func Refused(err error) bool {
	if _, ok := errors.AsType[*CloseError](err); ok {
		return false
	}
	return slices.ContainsFunc([]error{syscall.ECONNREFUSED, syscall.ECONNRESET, io.EOF, io.ErrUnexpectedEOF}, func(of error) bool { return errors.Is(err, of) })
}

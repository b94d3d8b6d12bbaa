package link

import (
	"errors"
	"net"
	"strings"
)

// several joins the errors of several transports in one line, for tables. A name that does not
// resolve is reported once.
func several(errs ...error) error {
	names := 0
	for _, err := range errs {
		if _, ok := errors.AsType[*net.DNSError](err); ok {
			names++
		}
	}
	if names > 0 && names == len(errs) {
		return errs[0]
	}
	return ways(errs)
}

type ways []error

func (w ways) Error() string {
	var texts []string
	for _, err := range w {
		if text := err.Error(); len(texts) == 0 || texts[len(texts)-1] != text {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "; ")
}

// Unwrap lets errors.Is and errors.As check each.
func (w ways) Unwrap() []error { return w }

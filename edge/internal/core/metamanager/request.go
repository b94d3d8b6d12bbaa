package metamanager

import (
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
)

// What clients ask and get; see package request.
type (
	Caller       = request.Caller
	ListOptions  = request.ListOptions
	WatchOptions = request.WatchOptions
	Event        = request.Event
	Watch        = request.Watch
	Write        = request.Write
	Result       = request.Result
)

// ErrPassThrough is returned by Get and List for what is not held here and can be asked of the
// cloud: send it with Request.
var ErrPassThrough = request.ErrPassThrough

package metamanager

import (
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
)

// Requests and results of clients; see package request.
type (
	Caller       = request.Caller
	ListOptions  = request.ListOptions
	WatchOptions = request.WatchOptions
	Event        = request.Event
	Watch        = request.Watch
	Write        = request.Write
	Result       = request.Result
)

// ErrPassThrough is returned by Get and List if the objects are not cached but available from the
// cloud: send the request with Request.
var ErrPassThrough = request.ErrPassThrough

package upgrade

import (
	"fmt"
	"slices"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
)

// window is a v1alpha1.OperationWindow that was read.
type window struct {
	days       []v1alpha1.Weekday
	start, end int // minutes of the day
	zone       *time.Location
}

func windowOf(w v1alpha1.OperationWindow, own *time.Location) (window, error) {
	out := window{days: w.Days, zone: own}
	for text, into := range map[string]*int{w.Start: &out.start, w.End: &out.end} {
		t, err := time.Parse("15:04", text)
		if err != nil {
			return out, fmt.Errorf("%.16q is no time of day", text)
		}
		*into = t.Hour()*60 + t.Minute()
	}
	if w.TimeZone != "" {
		zone, err := time.LoadLocation(w.TimeZone)
		if err != nil {
			return out, fmt.Errorf("unknown time zone %.64q", w.TimeZone)
		}
		out.zone = zone
	}
	return out, nil
}

// names of the days, Sunday first as in package time.
var names = [...]v1alpha1.Weekday{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

// next returns the time from which the window is open: now, if it is.
func (w window) next(now time.Time) time.Time {
	now = now.In(w.zone)
	for day := -1; day <= 8; day++ {
		at := time.Date(now.Year(), now.Month(), now.Day()+day, w.start/60, w.start%60, 0, 0, w.zone)
		if len(w.days) > 0 && !slices.Contains(w.days, names[at.Weekday()]) {
			continue
		}
		last := day
		if w.end <= w.start {
			last++
		}
		end := time.Date(now.Year(), now.Month(), now.Day()+last, w.end/60, w.end%60, 0, 0, w.zone)
		switch {
		case now.Before(at):
			return at
		case now.Before(end):
			return now
		}
	}
	return now // there is always one within a week
}

// mostWait is how long an operation waits at most before its window is computed again: a clock may
// have been set since.
const mostWait = 4 * time.Hour

// closed reports whether an operation has to wait for its window, and when to ask again.
func (w *Works) closed(o drain.Operation) (bool, time.Time) {
	if o.Spec.Window == nil {
		return false, time.Time{}
	}
	open, err := windowOf(*o.Spec.Window, w.config.Zone)
	if err != nil {
		return true, w.config.Now().Add(pause)
	}
	now := w.config.Clock()
	wait := open.next(now).Sub(now)
	return wait > 0, w.config.Now().Add(min(wait, mostWait))
}

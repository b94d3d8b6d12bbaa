package drain

import "time"

// DefaultRules are those of the page docs/drain.md.
func DefaultRules() Rules {
	return Rules{Attempts: 5, Interval: 300 * time.Second, Timeout: time.Hour, ProceedAfter: 300 * time.Second, RetryInterval: 5 * time.Second}
}

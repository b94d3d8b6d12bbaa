package console

import "fmt"

// refusal is an answer to the device, and its label in the metrics.
type refusal struct{ reason, text string }

func (r *refusal) Error() string { return r.text }

func refuse(reason, format string, args ...any) error {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

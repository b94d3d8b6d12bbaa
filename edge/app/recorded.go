package app

import (
	"encoding/json"

	"github.com/skerry-io/skerry/edge/internal/agents/flightrecorder"
)

// maxRecorded bounds the records that are sent over the link for one question, and recordedBytes
// their size.
const maxRecorded, recordedBytes = 200, 64 << 10

// recorded is the newest records for the cloud, the oldest first: a JSON array.
func (a *App) recorded(string) (body []byte, contentType string, err error) {
	all, err := flightrecorder.Newest(FlightRecorder(a.config), maxRecorded, recordedBytes)
	if err != nil {
		return nil, "", err
	}
	body, err = json.Marshal(all)
	return body, "application/json", err
}

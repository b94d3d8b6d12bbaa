package app

import (
	"encoding/json"
	"net/http"
)

// MaintenancePath is the path on the unix socket of the running edgecore that has it hand its
// virtual IPs over: PUT with a Maintenance.
const MaintenancePath = "/skerry/v1/maintenance"

// Maintenance is the request of `edgecore maintenance`.
type Maintenance struct {
	On bool `json:"on"`
}

// handleMaintenance answers when the order is on the disk.
func (a *App) handleMaintenance(w http.ResponseWriter, r *http.Request) {
	var m Maintenance
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if a.agents.vips == nil {
		http.Error(w, "modules.vip is switched off on this device: there is nothing to hand over", http.StatusConflict)
		return
	}
	if err := a.agents.vips.SetMaintenance(r.Context(), m.On); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

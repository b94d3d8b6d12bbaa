// Package app is the cloud's side of EdgeApps: it renders ordinary objects (a ReplicaSet, claims),
// decides when an application leaves a node that is lost and when it returns, and merges the nodes'
// reports.
//
// It owns the ReplicaSet, the claims and the status of each EdgeApp. It refuses to schedule: where
// a pod goes is for Kubernetes' scheduler, by the affinity that the objects carry. It refuses to
// start a second copy of an application with fencing Confirmed: a new pod is held by a scheduling
// gate until no other can be running, and a pod is removed by force only from a node that is known
// to be dead (Fencer). A plan is a pure function (State.Plan); Controller carries plans out, on one
// replica at a time. The whole state is in the objects: the next leader continues from there.
// Bounds: one plan at a time for an application, workers at once, and a failed plan is retried with
// a growing delay.
//
// From the bottom: state, render, merge (reports), planner, status, failover, plan, view (the
// informers), Controller.
package app

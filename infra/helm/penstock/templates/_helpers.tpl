{{- define "penstock.name" -}}
{{- if .Values.nameOverride }}{{ .Values.nameOverride }}{{ else if contains "penstock" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-penstock" (.Release.Name | trunc 31 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- /* Labels of pods and selectors: list ROOT COMPONENT */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{- define "penstock.pool" -}}
{{- $root := index . 0 }}{{ $pool := mergeOverwrite (deepCopy $root.Values.workers) (index . 1) }}
{{- toJson $pool }}
{{- end }}

{{- /* The settings file: what the user set, and above it what the chart decides */}}
{{- define "penstock.settings" -}}
{{- $queues := list }}{{ $most := 0 }}{{ $served := list }}
{{- range $name, $given := .Values.pools }}{{ $served = append $served $given.queue }}{{ end }}
{{- range $name, $given := .Values.pools }}
{{- $pool := include "penstock.pool" (list $ $given) | fromJson }}
{{- if and (ne $pool.mode "Fixed") (gt (len $served) (len (without $served $pool.queue) | add1 | int)) }}
{{- fail (printf "pools.%s: another pool serves the queue %s too, and each would start all workers that it wants" $name $pool.queue) }}
{{- end }}
{{- if gt (int $pool.min) (int $pool.max) }}{{ if ne $pool.mode "Fixed" }}{{ fail (printf "pools.%s: min is above max" $name) }}{{ end }}{{ end }}
{{- $queues = append $queues $pool.queue | uniq }}
{{- $most = max $most (int $pool.max) (int $pool.min) }}
{{- end }}
{{- $s3 := dict "region" .Values.s3.region "addressing_style" .Values.s3.addressingStyle }}
{{- if .Values.s3.endpointUrl }}{{ $_ := set $s3 "endpoint_url" .Values.s3.endpointUrl }}{{ end }}
{{- $catalogues := list }}
{{- range $file, $text := .Values.catalogues }}{{ $catalogues = append $catalogues (printf "/etc/penstock/%s" $file) }}{{ end }}
{{- $scaling := mergeOverwrite (dict "max_workers" $most) (.Values.settings.scaling | default dict) }}
{{- $own := dict "access" "keys" "host" "0.0.0.0" "port" 8080 "public_url" .Values.publicUrl "object_store" .Values.objectStore
  "data" "/data" "model_cache" "/cache" "s3" $s3 "models" $catalogues "queues" ($queues | sortAlpha) "scaling" $scaling }}
{{- merge $own .Values.settings | toToml }}
{{- end }}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "penstock.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* What all pods have: list ROOT COMPONENT */}}
{{- define "penstock.podBasics" -}}
{{- $root := index . 0 }}{{ $component := index . 1 -}}
{{- $account := has $component (list "api" "keeper") | ternary $component "worker" }}
serviceAccountName: {{ (index $root.Values.serviceAccounts $account).name | default (printf "%s-%s" (include "penstock.name" $root) $account) }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{ include "penstock.podSecurity" $root | nindent 2 }}
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Where a pod runs, and what runs before it: list ROOT COMPONENT VALUES; api and keeper are spread over nodes */}}
{{- define "penstock.placement" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ with index . 2 -}}
{{- if .topologySpreadConstraints }}
topologySpreadConstraints: {{ toYaml .topologySpreadConstraints | nindent 2 }}
{{- else if and (ne $component "worker") (kindIs "invalid" .topologySpreadConstraints) }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "penstock.selector" (list $root $component) | nindent 8 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .initContainers }}
initContainers: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "penstock.podAnnotations" -}}
checksum/config: {{ printf "%s%s" (include "penstock.settings" .) (toJson .Values.catalogues) | sha256sum }}
{{- end }}

{{- /* Environment of every process: list ROOT COMPONENT */}}
{{- define "penstock.env" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ with $root.Values -}}
- name: HOME
  value: /data
- name: PENSTOCK_CONFIG
  value: /etc/penstock/penstock.toml
- name: PENSTOCK_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .secrets.redis.name }}, key: {{ .secrets.redis.key }}}}
{{- if eq $component "api" }}
- name: PENSTOCK_SECRET
  valueFrom: {secretKeyRef: {name: {{ .secrets.signing.name }}, key: {{ .secrets.signing.key }}}}
{{- end }}
{{- if .secrets.s3.name }}
- name: PENSTOCK_S3__ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ .secrets.s3.name }}, key: {{ .secrets.s3.accessKeyIdKey }}}}
- name: PENSTOCK_S3__SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ .secrets.s3.name }}, key: {{ .secrets.s3.secretAccessKeyKey }}}}
{{- end }}
{{- if .ca.configMap }}
- name: AWS_CA_BUNDLE
  value: /etc/penstock-ca/ca.crt
{{- end }}
{{- if has $component (list "api" "keeper") }}
{{- range $name, $value := .otel }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "penstock.mounts" -}}
- {name: config, mountPath: /etc/penstock, readOnly: true}
{{- if .Values.ca.configMap }}
- {name: ca, mountPath: /etc/penstock-ca, readOnly: true}
{{- end }}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "penstock.volumes" -}}
- name: config
  configMap: {name: {{ include "penstock.name" . }}}
{{- if .Values.ca.configMap }}
- name: ca
  configMap:
    name: {{ .Values.ca.configMap }}
    items: [{key: {{ .Values.ca.key }}, path: ca.crt}]
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- end }}

{{- /* The pod template of a pool's workers: list ROOT NAME POOL */}}
{{- define "penstock.workerPod" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}{{ $pool := index . 2 -}}
metadata:
  labels:
    {{- include "penstock.labels" (list $root "worker") | nindent 4 }}
    penstock/pool: {{ $name }}
    {{- with $pool.labels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    {{- include "penstock.podAnnotations" $root | nindent 4 }}
    {{- with $pool.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- include "penstock.podBasics" (list $root "worker") | nindent 2 }}
  terminationGracePeriodSeconds: {{ add (int $pool.drainSeconds) 30 }}
  {{- if eq $pool.mode "ScaledJob" }}
  restartPolicy: Never
  {{- end }}
  {{- with $pool.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- include "penstock.placement" (list $root "worker" $pool) | nindent 2 }}
  containers:
    - name: worker
      image: {{ $pool.image | default $root.Values.images.worker }}
      imagePullPolicy: {{ $root.Values.images.pullPolicy }}
      args:
        - worker
        - --drain
        - {{ $pool.drainSeconds | int | quote }}
        {{- if eq $pool.mode "ScaledJob" }}
        - --idle-exit
        - {{ $pool.idleExitSeconds | int | quote }}
        {{- end }}
      securityContext: {{ include "penstock.security" $root | nindent 8 }}
      env:
        {{- include "penstock.env" (list $root "worker") | nindent 8 }}
        - name: PENSTOCK_QUEUES
          value: {{ list $pool.queue | toJson | quote }}
        {{- with $pool.slots }}
        - name: PENSTOCK_SLOTS
          value: {{ int . | quote }}
        {{- end }}
        {{- if not $pool.gpu }}
        # Half of the pod's memory: a worker sees that of the node.
        - name: PENSTOCK_ENGINE_MEMORY_BYTES
          value: {{ mul (int $pool.memoryGi) 536870912 | quote }}
        {{- end }}
        {{- with $pool.env }}{{ toYaml . | nindent 8 }}{{ end }}
      resources:
        requests:
          cpu: {{ $pool.cpu | quote }}
          memory: {{ int $pool.memoryGi }}Gi
        limits:
          memory: {{ int $pool.memoryGi }}Gi
          {{- with $pool.gpu }}
          {{ .resource }}: {{ int .count }}
          {{- end }}
      volumeMounts:
        {{- include "penstock.mounts" $root | nindent 8 }}
        - {name: cache, mountPath: /cache}
        {{- if $pool.shmGi }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        {{- with $pool.volumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    {{- include "penstock.volumes" $root | nindent 4 }}
    - name: cache
      {{- if $pool.modelCache.claim }}
      persistentVolumeClaim: {claimName: {{ $pool.modelCache.claim }}}
      {{- else if $pool.modelCache.hostPath }}
      hostPath: {path: {{ $pool.modelCache.hostPath | quote }}, type: Directory}
      {{- else }}
      emptyDir: {sizeLimit: {{ int $pool.modelCacheGi }}Gi}
      {{- end }}
    {{- with $pool.shmGi }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ int . }}Gi}
    {{- end }}
    {{- with $pool.volumes }}{{ toYaml . | nindent 4 }}{{ end }}
    - name: data
      {{- if $pool.scratch.storageClass }}
      ephemeral:
        volumeClaimTemplate:
          spec:
            accessModes: [ReadWriteOnce]
            storageClassName: {{ $pool.scratch.storageClass }}
            resources: {requests: {storage: {{ int $pool.scratch.sizeGi }}Gi}}
      {{- else }}
      emptyDir: {sizeLimit: {{ int $pool.scratch.sizeGi }}Gi}
      {{- end }}
{{- end }}

{{- /* KEDA's trigger for a queue: list ROOT QUEUE */}}
{{- define "penstock.trigger" -}}
{{- $root := index . 0 }}{{ $queue := index . 1 }}{{ $scaling := $root.Values.autoscaling }}{{ $name := include "penstock.name" $root -}}
{{- if eq $scaling.scaler "metrics-api" -}}
type: metrics-api
metricType: AverageValue
metadata:
  url: http://{{ $name }}.{{ $root.Release.Namespace }}.svc:8080/v1/queues/{{ $queue }}
  valueLocation: wanted_workers
  targetValue: "1"
  authMode: bearer
authenticationRef:
  name: {{ $name }}
{{- else -}}
type: prometheus
metricType: AverageValue
metadata:
  serverAddress: {{ $scaling.prometheus.address }}
  query: max(penstock_queue_wanted_workers{namespace={{ $root.Release.Namespace | quote }},queue={{ $queue | quote }}})
  threshold: "1"
  # No number is an error, at which nothing changes, and not a zero.
  ignoreNullValues: "false"
  {{- with $scaling.prometheus.authModes }}
  authModes: {{ . }}
  {{- end }}
{{- with $scaling.prometheus.authentication }}
authenticationRef:
  name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

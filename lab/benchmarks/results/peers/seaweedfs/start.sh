# Master, volume server, filer and S3 in one process, as SeaweedFS's wiki says (Cloud-Drive-Quick-Setup). Without
# "allowUntrustedRemoteEndpoints" no origin on loopback is accepted.
exec "@PROGRAMS@/weed" server -s3 -dir="@DIR@" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.volumeSizeLimitMB=1024 -volume.max=20 \
  -volume.preStopSeconds=0 -master.port=@FREE1@ -master.port.grpc=@FREE2@ -volume.port=@FREE3@ -volume.port.grpc=@FREE4@ \
  -filer.port=@FREE5@ -filer.port.grpc=@FREE6@ -s3.port=@PORT@ -s3.port.grpc=@FREE7@ -s3.port.iceberg=0 -s3.iam=false \
  -s3.config="@DIR@/s3.json" -volume.allowUntrustedRemoteEndpoints -filer.allowUntrustedRemoteEndpoints \
  -s3.allowUntrustedRemoteEndpoints

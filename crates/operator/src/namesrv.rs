//! What name servers keep: keys, and whether a broker may be written to.

use protocol::code::{ResponseCode, request};
use protocol::request::{
    AddWritePerm, AddWritePermReply, DeleteKv, GetKv, GetKvReply, PutKv, WipeWritePerm, WipeWritePermReply,
};

use crate::error::{Result, ensure};
use crate::handle::Operator;

impl Operator {
    /// The value of a key, as the first name server that answers has it.
    pub async fn kv(&self, namespace: &str, key: &str) -> Result<Option<String>> {
        match self.admin.tell_names(request::GET_KV_CONFIG, &GetKv { namespace, key }).await {
            Ok(response) => Ok(GetKvReply::decode(&response.fields.as_fields())?.value.map(str::to_owned)),
            Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets a key in all name servers.
    pub async fn set_kv(&self, namespace: &str, key: &str, value: &str) -> Result<()> {
        self.need_names()?;
        for address in self.name_servers() {
            self.admin.tell(address, request::PUT_KV_CONFIG, &PutKv { namespace, key, value }).await?;
        }
        Ok(())
    }

    /// Deletes a key in all name servers that have it.
    pub async fn delete_kv(&self, namespace: &str, key: &str) -> Result<()> {
        self.need_names()?;
        let mut is_known = false;
        for address in self.name_servers() {
            match self.admin.tell(address, request::GET_KV_CONFIG, &GetKv { namespace, key }).await {
                Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => continue,
                known => known.map(|_| is_known = true)?,
            }
            self.delete_kv_at(address, namespace, key).await?;
        }
        ensure!(is_known, NotFound, "no name server has key {key} of namespace {namespace}: nothing is deleted");
        Ok(())
    }

    pub(crate) async fn delete_kv_at(&self, address: &str, namespace: &str, key: &str) -> Result<()> {
        self.admin.tell(address, request::DELETE_KV_CONFIG, &DeleteKv { namespace, key }).await?;
        Ok(())
    }

    /// Takes a broker out of writing, in all name servers. Returns of how many topics, by name server.
    pub async fn wipe_write_perm(&self, broker_name: &str) -> Result<Vec<(String, i32)>> {
        self.need_broker(broker_name).await?;
        let mut counts = Vec::new();
        for address in self.name_servers() {
            let fields = WipeWritePerm { broker_name };
            let response = self.admin.tell(address, request::WIPE_WRITE_PERM_OF_BROKER, &fields).await?;
            let reply = WipeWritePermReply::decode(&response.fields.as_fields())?;
            counts.push((address.clone(), reply.wipe_topic_count));
        }
        Ok(counts)
    }

    /// Puts a broker back into writing, in all name servers. Returns in how many topics, by name server.
    pub async fn add_write_perm(&self, broker_name: &str) -> Result<Vec<(String, i32)>> {
        self.need_broker(broker_name).await?;
        let mut counts = Vec::new();
        for address in self.name_servers() {
            let fields = AddWritePerm { broker_name };
            let response = self.admin.tell(address, request::ADD_WRITE_PERM_OF_BROKER, &fields).await?;
            let reply = AddWritePermReply::decode(&response.fields.as_fields())?;
            counts.push((address.clone(), reply.add_topic_count));
        }
        Ok(counts)
    }

    /// Fails if no broker of that name is registered: name servers answer that no topic changed, and call it a success.
    async fn need_broker(&self, name: &str) -> Result<()> {
        let cluster = self.cluster().await?;
        let known: Vec<&str> = cluster.broker_addr_table.keys().map(String::as_str).collect();
        let is_known = cluster.broker_addr_table.contains_key(name);
        ensure!(is_known, NotFound, "the name server knows no broker {name}: it knows {}", known.join(", "));
        Ok(())
    }
}
